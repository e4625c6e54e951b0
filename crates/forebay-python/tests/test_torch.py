"""Tensors of PyTorch: where torch is, for what is in them; everywhere, for streams.

The GPU of the second kind of test is `fake_torch`: it does everything as late, and frees as early, as CUDA
may. What a real GPU adds is tested only where there is one.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import fake_torch
import forebay
import forebay.torch
from conftest import CLASSES, python
from test_loader import SMALL, TOTAL, content, loader

MEAN, STD = forebay.torch.IMAGENET_MEAN, forebay.torch.IMAGENET_STD


def of(source: Any, **options: Any) -> forebay.torch.Loader:
    return forebay.torch.Loader(source, **{"batch_size": 8, "transform": SMALL, **options})


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch.module())


def read(tensor: fake_torch.Tensor) -> np.ndarray:
    """The data that a kernel reads if it is queued now and runs after everything is queued."""
    got: list[np.ndarray] = []
    array = tensor.array
    fake_torch.cuda.default.put(lambda: got.append(array.copy()))
    return got  # type: ignore[return-value]


def pair(batch: Any) -> Any:
    """A function that has the batch come as numpy arrays: the native one knows only real torch."""
    return batch.images, batch.labels


def test_labels_and_classes_are_those_of_the_loader(late: None, source: str) -> None:
    for base in (0, 1, "stored"):
        with of(source, map_batch=pair, device="cuda", label_base=base) as it, loader(
            source, label_base=base
        ) as plain:
            assert it.classes == plain.classes == CLASSES
            assert it.label_base == plain.label_base == (1 if base else 0)
            seen = [read(batch.labels) for batch in it]
            expected = [batch.labels for batch in plain]
            fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        assert all(np.array_equal(a[0], b) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("normal", [False, True])
def test_a_late_gpu_gets_every_batch(
    late: None, source: str, channels_last: bool, normal: bool
) -> None:
    """Each tensor is let go before its work ran, as a training step does it."""
    options: dict[str, Any] = {"normalize": (MEAN, STD)} if normal else {}
    seen = []
    with of(
        source, device="cuda", channels_last=channels_last, map_batch=pair, drop_last=False, pad_last=True, **options
    ) as it:
        assert it.device.index == 0
        for _ in range(3):
            for batch in it:
                images, labels = batch
                assert images.shape == (8, 3, 32, 32) and batch.layout == "nchw"
                rows = images.array.transpose(0, 2, 3, 1).flags.c_contiguous
                assert rows == channels_last
                seen.append((read(images), read(labels), read(batch.padding), batch.step))
                del batch, images, labels
        fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
    with loader(source, drop_last=False, pad_last=True) as plain:
        for epoch in range(3):
            for step, made in enumerate(plain):
                images, labels, padding, at = seen[epoch * len(plain) + step]
                want = made.images.transpose(0, 3, 1, 2)
                if normal:
                    want = want.astype(np.float32) / 255
                    want = (want - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
                np.testing.assert_allclose(images[0], want, atol=1e-5)
                assert labels[0].tolist() == made.labels.tolist()
                assert padding[0].tolist() == made.padding.tolist()
                assert at == step
    assert len(seen) == 3 * -(-TOTAL // 8)


def test_the_late_gpu_finds_what_it_is_there_to_find(late: None, source: str) -> None:
    """Without each of the three precautions some batch is wrong."""

    def wrong() -> int:
        with loader(source) as plain:
            want = [batch.images for _ in range(3) for batch in plain]
        seen = []
        fake_torch.Block.free.clear()
        with of(source, device="cuda", channels_last=True, map_batch=pair) as it:
            for _ in range(3):
                for images, _labels in it:
                    seen.append(read(images))
                    del images
            fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        return sum(
            not np.array_equal(got[0].transpose(0, 2, 3, 1), images)
            for got, images in zip(seen, want, strict=True)
        )

    assert wrong() == 0
    for kind, method in (
        (fake_torch.Event, "synchronize"),
        (fake_torch.Stream, "wait_event"),
        (fake_torch.Tensor, "record_stream"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, method, lambda *_: None)
            assert wrong() > 0, method


def test_copies_wait_for_no_work_of_the_trainer(late: None, source: str) -> None:
    """The whole epoch gets to the GPU while the first step has not run."""
    ran: list[int] = []
    with of(source, device="cuda", map_batch=pair) as it:
        fake_torch.cuda.default.put(lambda: ran.append(1))
        assert len(list(it)) == len(it) > 2 and not ran
        fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        assert ran


def test_what_a_function_put_on_the_gpu_is_waited_for(late: None, source: str) -> None:
    def there(batch: Any) -> Any:
        images = fake_torch.as_tensor(batch.images)
        return images.to(fake_torch.device("cuda")), batch.labels

    half = ((0.0,) * 3, (0.5,) * 3)
    with of(source, device="cuda", map_batch=there, normalize=half) as it, loader(source) as plain:
        seen = [read(images) for images, _ in it]
        fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        for got, batch in zip(seen, plain, strict=True):
            np.testing.assert_allclose(got[0].transpose(0, 2, 3, 1), batch.images / 127.5, atol=1e-5)


def test_mixed_labels_go_to_the_gpu(late: None, source: str) -> None:
    options = {"batch_transform": forebay.Mixup(0.4)}
    with of(source, device="cuda", map_batch=pair, **options) as it, loader(source, **options) as plain:
        seen = [(read(b.images), read(b.labels_b), read(b.lam)) for b in it]
        fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        for (images, partners, shares), batch in zip(seen, plain, strict=True):
            assert batch.labels_b is not None and batch.lam is not None
            assert (images[0].transpose(0, 2, 3, 1) == batch.images).all()
            assert partners[0].tolist() == batch.labels_b.tolist()
            assert shares[0].tolist() == batch.lam.tolist()


def test_pinned_buffers_are_few(late: None, source: str) -> None:
    fake_torch.pinned_bytes.clear()
    with of(source, device="cuda:0", map_batch=pair, prefetch=4) as it:
        for _ in range(4):
            assert len(list(it)) == len(it)
    assert len(fake_torch.pinned_bytes) == 2
    assert all(8 * 32 * 32 * 3 <= size <= 8 * 32 * 32 * 3 + 4 * 256 for size in fake_torch.pinned_bytes)


def test_whatever_a_function_returns_goes_to_the_gpu(late: None, source: str) -> None:
    def views(batch: Any) -> Any:
        return {"views": [batch.images, 255 - batch.images], "name": "two", "n": (batch.labels, 1)}

    with of(source, device="cuda", map_batch=views) as it, loader(source) as plain:
        got = [(read(item["views"][1]), read(item["n"][0]), item["name"]) for item in it]
        fake_torch.cuda.default.run(len(fake_torch.cuda.default.queue))
        for (second, labels, name), batch in zip(got, plain, strict=True):
            assert (second[0] == 255 - batch.images).all() and name == "two"
            assert labels[0].tolist() == batch.labels.tolist()


def test_options_that_cannot_work(late: None, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        {"layout": "nhwc"},
        {"prefetch": 0},
        {"normalize": ((0.5, 0.5), (1, 1))},
        {"normalize": ((0.5, 0.5, 0.5), (1, 0, 1))},
        {"float_dtype": fake_torch.float16},
    ):
        with pytest.raises(forebay.OptionError):
            of(source, **wrong)
    with loader(source) as made, pytest.raises(forebay.OptionError, match="batch_size"):
        forebay.torch.Loader(made, batch_size=8)
    monkeypatch.setattr(fake_torch.Cuda, "is_available", lambda _: False)
    with pytest.raises(forebay.OptionError, match="no GPU"):
        of(source, device="cuda")


def test_the_state_is_of_what_the_trainer_has(late: None, source: str) -> None:
    with loader(source) as plain, of(source, device="cuda", map_batch=pair, prefetch=5) as it:
        for _ in range(2):
            for _, _ in zip(plain, it, strict=True):
                assert plain.state_dict() == it.state_dict()


def test_steps_are_items_for_code_that_skips(late: None, source: str) -> None:
    """As a DataLoader takes them, with the rest of the steps of a batch sampler."""
    with of(source, drop_last=False, map_batch=lambda batch: (batch.epoch, batch.step, batch.samples.tolist())) as it:
        want = [batch for _ in range(2) for batch in it]
        it.set_epoch(0)
        steps, samples = list(it.batch_sampler), it.dataset
        assert steps == list(range(len(it))) and len(it.batch_sampler) == len(it) and it.prefetch_factor is None
        got = [it.collate_fn(samples.__getitems__(step)) for step in steps[4:]]
        assert got == want[4:6] and (it.epoch, it.position) == (1, 0)
        assert list(it) == want[6:]


def test_without_torch_it_says_so(source: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import forebay\n"
        "try:\n"
        "    forebay.torch.Loader(sys.argv[1])\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = python(code, source)
    assert "torch" in done.stdout, done.stderr


# With torch itself, on the CPU.


def test_tensors_are_the_memory_of_the_batch(source: str) -> None:
    torch = pytest.importorskip("torch")
    with loader(source, drop_last=False, pad_last=True) as plain:
        want = [content(batch) for batch in plain]
    for channels_last in (False, True):
        with of(source, channels_last=channels_last, drop_last=False, pad_last=True) as it:
            got = list(it)
            assert len(got) == len(it) and it.device.type == "cpu"
        for batch, expected in zip(got, want, strict=True):
            images, labels = batch
            assert images.dtype == torch.uint8 and tuple(images.shape) == (8, 3, 32, 32)
            order = torch.channels_last if channels_last else torch.contiguous_format
            assert images.is_contiguous(memory_format=order)
            assert images.permute(0, 2, 3, 1).contiguous().numpy().tobytes() == expected[6]
            assert labels.dtype == torch.int64 and labels.tolist() == expected[7]
            assert batch.padding.dtype == torch.bool and batch.padding.tolist() == expected[9]
            assert batch.failed.dtype == torch.bool and not batch.failed.any()
            assert images.data_ptr() % 4096 == 0, "not a copy"


def test_normalised_on_the_cpu(source: str) -> None:
    torch = pytest.importorskip("torch")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    for dtype in (torch.float32, torch.bfloat16):
        with of(source) as plain, of(
            source, normalize=(MEAN, STD), float_dtype=dtype, channels_last=True
        ) as it:
            for (bytes_, _), (images, _) in zip(plain, it, strict=True):
                want = (bytes_ / 255 - mean) / std
                assert images.dtype == dtype
                assert images.is_contiguous(memory_format=torch.channels_last)
                torch.testing.assert_close(images, want.to(dtype))


def test_functions_and_tensors(source: str) -> None:
    torch = pytest.importorskip("torch")

    def mirrored(image: Any, label: int) -> tuple[Any, int]:
        assert image.shape == (32, 32, 3)
        return image[:, ::-1], label

    with of(source) as plain, of(source, map_sample=mirrored, map_threads=2) as it:
        for (before, _), (after, labels) in zip(plain, it, strict=True):
            assert after.is_contiguous() and labels.dtype == torch.int64
            assert torch.equal(after, before.flip(3))


def test_a_pin_without_a_gpu_is_no_error(source: str) -> None:
    torch = pytest.importorskip("torch")
    with of(source, pin_memory=True) as it, of(source) as plain:
        for (a, b), (c, d) in zip(it, plain, strict=True):
            assert torch.equal(a, c) and torch.equal(b, d)
            assert a.is_pinned() == torch.cuda.is_available()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_worker_processes_are_told_the_remedy(packed: dict[str, pathlib.Path]) -> None:
    """A loader inside torch's own, whose workers are forks."""
    torch = pytest.importorskip("torch")

    class Inside(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            return iter(self.loader)

    for inner in (loader(packed["indexed"]), of(packed["indexed"], normalize=(MEAN, STD))):
        workers = torch.utils.data.DataLoader(
            Inside(inner), batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        with inner, pytest.raises(forebay.ForkError, match="spawn"):
            next(iter(workers))
    # Without workers it works, and gains nothing.
    with of(packed["indexed"]) as inner:
        alone = torch.utils.data.DataLoader(Inside(inner), batch_size=None, num_workers=0)
        assert sum(len(labels) for _, labels in alone) == 40


def test_a_gpu(packed: dict[str, pathlib.Path]) -> None:
    """The same tensors as on the CPU, with work queued that is slower than the loader."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    for options in ({}, {"channels_last": True}, {"normalize": (MEAN, STD)}):
        kept = []
        with of(packed["indexed"], device="cuda", **options) as it:
            slow = torch.rand(2048, 2048, device="cuda")
            for _ in range(3):
                for batch in it:
                    for _ in range(20):
                        slow = slow @ slow / 2048
                    kept.append((batch.images + 0, batch.labels + 0))
                    del batch
        with of(packed["indexed"], **options) as plain:
            want = [tuple(batch) for _ in range(3) for batch in plain]
        for (images, labels), (a, b) in zip(kept, want, strict=True):
            torch.testing.assert_close(images.cpu(), a)
            assert torch.equal(labels.cpu(), b)
