//! The docstring and the signature of `Loader`, with the options of the schema.

use forebay_options::{GROUPS, LoaderOption, OPTIONS, OptionKind, PROCESS_OPTIONS};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use serde_json::Value;

/// The docstring up to the groups of options.
const BEFORE: &str = r#"Batches of decoded images, for training or in order.

One loop over the loader is one epoch, and the next loop is the next epoch, also after a loop
that was left early: as `torch.utils.data.DataLoader` does with `shuffle=True`. A transform for training
shuffles and leaves the last, short batch out; `EvalTransform` does neither. `set_epoch`, or
`sampler.set_epoch`, chooses the epoch of the next loop. Which samples are in which batch, in which order
and with which random crops, is a function of the dataset, `seed`, `shuffle`, `virtual_ranks`
and the epoch: not of threads, of the machine, or of whether a server is in between.

Waiting for a batch lets other threads run and ends at Ctrl-C. Threads may share a
loader; each batch goes to one of them. A loader does not survive a fork: make it in
the process that uses it.

Options come in groups:

"#;

/// The docstring from the groups to the options of the schema.
const SOURCE: &str = r#"
Parameters
----------
source : str, os.PathLike or Mix
    The directory of a dataset, its URL in a store (`s3://`, `gs://`, `az://`, `https://`), or
    `forebay://HOST:PORT/NAME` (`forebays://` with TLS) for a dataset or a job that a server has. Several servers of the
    same are `forebay://A:PORT,B:PORT/NAME`; all addresses of a name `forebay+dns://HOST:PORT/NAME`; those of a file
    `forebay+file:///PATH/NAME`. A rank has one of them and goes on with another when that one is gone. A job
    brings its own options: those given here must agree with them. A `Mix` is several datasets as one.
"#;

/// The docstring after the options.
const AFTER: &str = r#"
Raises
------
OptionError
    An option, or a combination of them, that cannot work. From the first use on also where the rank cannot be
    determined: WORLD_SIZE without a rank, or two sources that contradict each other.
MissingError, MismatchError, ShardError, StorageError
    See `open`.
ServerError
    When the server cannot be reached, or refuses.
AuthError
    When the server wants a token or a certificate, or has one that is not trusted.
TimeoutError
    When it does not answer in time.

Examples
--------
>>> train = forebay.TrainTransform(224)
>>> with forebay.Loader("packed/", batch_size=256, transform=train) as loader:  # doctest: +SKIP
...     for images, labels in loader:
...         train(images, labels)
"#;

/// All options in the order of their groups: those of the stream, and those of the process that receives it.
pub(super) fn options() -> impl Iterator<Item = &'static LoaderOption> {
    let named = |name: &str| {
        let mut all = OPTIONS.iter().chain(PROCESS_OPTIONS);
        all.find(|option| option.name == name)
    };
    let names = GROUPS.iter().flat_map(|(_, names)| names.split(' '));
    names.filter_map(named)
}

/// Returns the type of an option for people, and for type checkers.
fn types(kind: OptionKind) -> (String, String) {
    let known = match kind {
        OptionKind::Count(_) => ("int", "int"),
        OptionKind::Bytes => ("int or str", "int | str"),
        OptionKind::Flag => ("bool", "bool"),
        OptionKind::Choice(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            let names = names.join(", ");
            let (of_library, checked) = match names.contains("float32") {
                true => (
                    " or such a type of numpy, torch or JAX",
                    " | npt.DTypeLike | _NamedType",
                ),
                false => ("", ""),
            };
            return (
                format!("{{{names}}}{of_library}"),
                format!("Literal[{names}]{checked}"),
            );
        }
        OptionKind::Transform => (
            "TrainTransform, EvalTransform, list of transforms or KeepEncoded",
            "_Transform",
        ),
        OptionKind::BatchTransform => ("Mixup, CutMix or RandomChoice", "_BatchTransform"),
        OptionKind::Indices => (
            "sequence, array or tensor of int",
            "Sequence[int] | npt.NDArray[np.integer[Any]] | _Tensor",
        ),
        OptionKind::Classes => ("sequence of str or int", "Sequence[str | int]"),
        OptionKind::Columns => ("sequence of str", "Sequence[str]"),
        OptionKind::Weights => (
            "dict or sequence of float",
            "Mapping[str, float] | Mapping[int, float] | Sequence[float] | npt.NDArray[np.floating[Any]]",
        ),
        OptionKind::Base => (r#"{0, 1, "stored"}"#, r#"Literal[0, 1, "stored"]"#),
        OptionKind::Shuffle => ("bool or str", "bool | str"),
        OptionKind::Normalize => (
            "tuple of two sequences of float",
            "tuple[Sequence[float], Sequence[float]] | Normalize",
        ),
        OptionKind::Seconds => ("float or None", "float | None"),
        OptionKind::Path => ("str or os.PathLike", "str | os.PathLike[str]"),
        OptionKind::Settings => ("dict of str to str", "dict[str, str]"),
        _ => ("str", "str"),
    };
    (known.0.to_owned(), known.1.to_owned())
}

/// Returns the default that the signature shows; null if it depends on other options.
fn default(option: &LoaderOption) -> Value {
    let number = || {
        option
            .default
            .parse::<u64>()
            .map_or(Value::Null, Value::from)
    };
    match option.kind {
        OptionKind::Count(_) | OptionKind::Base => number(),
        OptionKind::Flag if option.default.contains(' ') => Value::Null,
        OptionKind::Flag => Value::from(option.default == "true"),
        OptionKind::Seconds => option
            .default
            .parse::<f64>()
            .map_or(Value::Null, Value::from),
        OptionKind::Choice(names) if !names.contains(&option.default) => Value::Null,
        OptionKind::Choice(_) => Value::from(option.default),
        _ => Value::Null,
    }
}

/// Returns the docstring of `Loader`.
pub(super) fn docstring() -> String {
    let mut text = BEFORE.to_owned();
    for (title, names) in GROUPS {
        text += &format!("- {title}: `{}`\n", names.replace(' ', "`, `"));
    }
    text += SOURCE;
    for option in options() {
        let default = match default(option) {
            Value::Null => "optional".to_owned(),
            Value::Bool(true) => "default True".to_owned(),
            Value::Bool(false) => "default False".to_owned(),
            value => format!("default {value}"),
        };
        let (kind, _) = types(option.kind);
        text += &format!(
            "{} : {kind}, {default}\n    {}.\n",
            option.name,
            option.doc.trim()
        );
        for line in option.details {
            text += &format!("    {}\n", line.trim());
        }
    }
    text + AFTER.trim_end()
}

/// Returns the signature of `Loader`, with types for type checkers.
pub(super) fn signature<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let inspect = py.import("inspect")?;
    let class = inspect.getattr("Parameter")?;
    let json = py.import("json")?;
    let parameter =
        |name: &str, kind: &str, more: &Bound<'py, PyDict>| -> PyResult<Bound<'py, PyAny>> {
            class.call((name, class.getattr(kind)?), Some(more))
        };
    let source = [("annotation", "str | os.PathLike[str] | Mix")].into_py_dict(py)?;
    let mut parameters = vec![parameter("source", "POSITIONAL_OR_KEYWORD", &source)?];
    for option in options() {
        let default = default(option);
        let (_, mut annotation) = types(option.kind);
        if default.is_null() {
            annotation += " | None";
        }
        let more = [("annotation", annotation)].into_py_dict(py)?;
        more.set_item(
            "default",
            json.call_method1("loads", (default.to_string(),))?,
        )?;
        parameters.push(parameter(option.name, "KEYWORD_ONLY", &more)?);
    }
    inspect.getattr("Signature")?.call1((parameters,))
}
