#!/usr/bin/env python3
"""Trains ResNet-50 on ImageNet with PyTorch: one GPU, or many with torchrun.

    forebay pack ~/imagenet /data/imagenet --format indexed
    python examples/imagenet_resnet50.py /data/imagenet --output runs/r50
    torchrun --nproc-per-node 8 examples/imagenet_resnet50.py /data/imagenet --output runs/r50

DATA is a packed dataset, or `forebay://HOST:PORT/NAME` where other machines decode. Needs torch and torchvision (for the
network alone). The recipe is the usual one: SGD with momentum, cosine schedule after a warm-up, label smoothing, mixed
precision, channels_last.

- A run that was interrupted goes on when the same command is given again, with the very next batch, also on another number of
  GPUs. On SIGTERM, which schedulers send before they take a machine away, it saves first.
- Pixels travel to the GPU as bytes, on a stream of their own, and are normalised there.
- Validation counts each picture exactly once, whatever the number of ranks: padding is masked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn

import forebay
from forebay.torch import IMAGENET_MEAN, IMAGENET_STD, Loader


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a packed dataset, or forebay://HOST:PORT/NAME")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="where checkpoints and the log go")
    parser.add_argument("--arch", default="resnet50", help="a classifier of torchvision")
    parser.add_argument("--classes", type=int, help="default: as many as the dataset has")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="of all ranks together")
    parser.add_argument("--lr", type=float, help="at its highest; default 0.1 for each 256 of the batch size")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--amp", choices=["bfloat16", "float16", "off"], default="bfloat16")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels")
    parser.add_argument("--eval-resize", type=int, help="short side before the centre crop; default 8/7 of --size")
    parser.add_argument("--train-split", default="train")
    parser.add_argument("--eval-split", default="validation")
    parser.add_argument("--threads", type=int, default=0, help="decoding threads of a rank; 0 shares the machine out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the network")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints")
    parser.add_argument("--log-every", type=int, default=50, help="steps between lines of the log")
    parser.add_argument("--stop-after", type=int, help="steps after which to save and stop, to try a resume")
    parser.add_argument("--device", help="default: cuda where there is one")
    return parser.parse_args()


class Ranks:
    """This process among those that train together; torchrun tells through the environment."""

    def __init__(self, device: str | None) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if kind == "cuda":
            torch.cuda.set_device(self.local)
        self.device = torch.device(kind, self.local if kind == "cuda" else None)
        if self.world > 1:
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, *values: torch.Tensor) -> list[float]:
        """Sums over all ranks."""
        sums = torch.stack([value.double() for value in values])
        if self.world > 1:
            dist.all_reduce(sums)
        return sums.tolist()


def loaders(args: argparse.Namespace, ranks: Ranks) -> tuple[Loader, Loader]:
    """For training, and for validation."""
    if args.batch_size % ranks.world:
        sys.exit(f"--batch-size {args.batch_size} cannot be shared by {ranks.world} ranks")
    cores = len(os.sched_getaffinity(0))
    common: dict[str, Any] = {
        "batch_size": args.batch_size // ranks.world,
        "device": ranks.device,
        "channels_last": True,
        "normalize": (IMAGENET_MEAN, IMAGENET_STD),
        "threads": args.threads or max(1, cores // ranks.local_world),
    }
    resize = args.eval_resize or round(args.size * 8 / 7)
    return (
        Loader(
            args.data, split=args.train_split, seed=args.seed,
            transform=forebay.TrainTransform(args.size), **common,
        ),
        Loader(
            args.data, split=args.eval_split,
            transform=forebay.EvalTransform(args.size, resize=resize), **common,
        ),
    )  # fmt: skip


class Run:
    """All that changes while training, and is in a checkpoint."""

    def __init__(self, args: argparse.Namespace, ranks: Ranks) -> None:
        torch.manual_seed(args.seed)
        self.args, self.ranks = args, ranks
        self.train_loader, self.eval_loader = loaders(args, ranks)
        classes = args.classes or len(self.train_loader.classes)
        if not classes:
            sys.exit(f"--classes: {args.data} has no list of its classes, so give their number")
        model = torchvision.models.get_model(args.arch, num_classes=classes)
        self.model = model.to(ranks.device, memory_format=torch.channels_last)
        # No decay of what scales and shifts: neither batch norm's nor biases.
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        self.highest = args.lr or 0.1 * args.batch_size / 256
        self.optimizer = torch.optim.SGD(
            [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others}],
            lr=self.highest, momentum=args.momentum, nesterov=True,
        )  # fmt: skip
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=args.amp == "float16")
        self.step = 0
        self.best = 0.0
        net: nn.Module = self.model
        if args.compile:
            net = torch.compile(net)
        if ranks.world > 1:
            ids = [ranks.local] if ranks.device.type == "cuda" else None
            net = nn.parallel.DistributedDataParallel(net, device_ids=ids)
        self.net = net
        self.criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)

    @property
    def file(self) -> pathlib.Path:
        return self.args.output / "checkpoint.pt"

    def save(self) -> None:
        """Writes the checkpoint, which is whole or the one before."""
        if not self.ranks.first:
            return
        draft = self.file.with_suffix(".draft")
        # The state of the loader is the same on all ranks.
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "loader": self.train_loader.state_dict(),
                "step": self.step,
                "best": self.best,
            },
            draft,
        )
        draft.replace(self.file)

    def restore(self) -> None:
        """Goes on from the checkpoint, if there is one."""
        if not self.file.exists():
            return
        saved = torch.load(self.file, map_location=self.ranks.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        self.train_loader.load_state_dict(saved["loader"])
        self.step, self.best = saved["step"], saved["best"]
        self.log(event="resumed", step=self.step, epoch=self.train_loader.epoch)

    def log(self, **what: Any) -> None:
        """One line of JSON, on the first rank."""
        if self.ranks.first:
            line = json.dumps(what)
            print(line, flush=True)
            with open(self.args.output / "log.jsonl", "a") as file:
                file.write(line + "\n")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.args.amp == "off":
            return contextlib.nullcontext()
        return torch.autocast(self.ranks.device.type, getattr(torch, self.args.amp))

    def set_rate(self) -> float:
        """The learning rate of this step: a rise to the highest, then half a cosine."""
        steps = len(self.train_loader)
        warm, all_ = self.args.warmup_epochs * steps, self.args.epochs * steps
        if self.step < warm:
            part = (self.step + 1) / warm
        else:
            part = 0.5 * (1 + math.cos(math.pi * (self.step - warm) / max(1, all_ - warm)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.highest * part
        return float(self.highest * part)

    def train_epoch(self, stop: Stop) -> bool:
        """The rest of the loader's epoch; False when it was told to stop."""
        self.net.train()
        epoch, begin, images_seen = self.train_loader.epoch, time.perf_counter(), 0
        for images, labels in self.train_loader:
            rate = self.set_rate()
            with self.autocast():
                loss = self.criterion(self.net(images), labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            images_seen += len(images) * self.ranks.world
            if self.step % self.args.log_every == 0:
                # The only place that waits for the GPU.
                value = loss.item()
                seconds = time.perf_counter() - begin
                self.log(
                    epoch=epoch, step=self.step, loss=round(value, 4), lr=round(rate, 5),
                    images_per_s=round(images_seen / seconds, 1),
                )  # fmt: skip
                begin, images_seen = time.perf_counter(), 0
            if stop.now(self.step):
                self.save()
                return False
            if self.step % self.args.save_every == 0:
                self.save()
        return True

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Evaluates every picture once: the mean loss, and the parts right at first and in five."""
        self.net.eval()
        if self.ranks.world > 1:
            # What batch norm has counted differs by rank; the checkpoint has the first one's.
            for counted in self.model.buffers():
                dist.broadcast(counted, 0)
        zero = torch.zeros((), device=self.ranks.device)
        count, loss, top1, top5 = zero.clone(), zero.clone(), zero.clone(), zero.clone()
        for batch in self.eval_loader:
            # The same number of batches on every rank; what fills the last ones up is masked.
            real = ~batch.padding
            with self.autocast():
                scores = self.model(batch.images)
            scores, labels = scores.float()[real], batch.labels[real]
            best = scores.topk(min(5, scores.shape[1]), dim=1).indices == labels[:, None]
            count += real.sum()
            loss += nn.functional.cross_entropy(scores, labels, reduction="sum")
            top1 += best[:, 0].sum()
            top5 += best.sum()
        pictures, *sums = self.ranks.total(count, loss, top1, top5)
        if pictures != self.eval_loader.records:
            raise RuntimeError(f"validated {pictures:.0f} of {self.eval_loader.records} pictures")
        return dict(zip(("eval_loss", "top1", "top5"), (total / pictures for total in sums), strict=True))


class Stop:
    """Whether to save and stop: at SIGTERM on any rank, or after a number of steps."""

    EVERY = 10
    """Steps between looks at what the other ranks were told."""

    def __init__(self, ranks: Ranks, after: int | None) -> None:
        self.ranks, self.after, self.told, self.begun = ranks, after, False, 0
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: Any) -> None:
        self.told = True

    def now(self, step: int) -> bool:
        self.begun += 1
        if self.after is not None and self.begun >= self.after:
            return True
        if self.ranks.world == 1:
            return self.told
        if step % self.EVERY:
            return False
        # All ranks stop at the same step, or the others would wait for this one's gradients.
        return self.ranks.total(torch.tensor(float(self.told), device=self.ranks.device))[0] > 0


def main() -> int:
    args = arguments()
    ranks = Ranks(args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    run = Run(args, ranks)
    run.restore()
    stop = Stop(ranks, args.stop_after)
    while run.train_loader.epoch < args.epochs:
        epoch = run.train_loader.epoch
        if not run.train_epoch(stop):
            run.log(event="stopped", step=run.step)
            break
        scores = run.validate()
        better, run.best = scores["top1"] > run.best, max(scores["top1"], run.best)
        run.log(epoch=epoch, step=run.step, **{name: round(value, 4) for name, value in scores.items()})
        run.save()
        if better and ranks.first:
            torch.save(run.model.state_dict(), args.output / "best.pt")
    bottleneck = run.train_loader.stats()["bottleneck"]
    run.log(event="end", step=run.step, best_top1=round(run.best, 4), loader=bottleneck)
    run.train_loader.close()
    run.eval_loader.close()
    if ranks.world > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
