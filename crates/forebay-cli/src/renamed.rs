//! Flags, values and commands that had another name: the error of clap names the one to use.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Earlier names, as they are typed, and what to type now. The flags of the loader's options come from
/// [`forebay_options::renamed`].
const RENAMED: &[(&str, &str)] = &[
    ("--against", "--compare-source"),
    ("--convert-odd", "--transcode-nonstandard"),
    ("--format", "--to"),
    ("--images", "--deep"),
    ("--no-idx", "--no-dali-index"),
    ("--out", "--output"),
    ("--seconds", "--duration"),
    ("--seek-points fine", "--seek-points dense"),
    ("simulate", "size-cluster"),
];

/// An error of parsing, or in its place one that says what the name is now.
pub(crate) fn with_new_name(error: clap::Error, command: &clap::Command) -> clap::Error {
    let Some((typed, instead)) = earlier(&error) else {
        return error;
    };
    let kind = error.kind();
    clap::Error::raw(kind, format!("{typed} has another name now: {instead}\n")).with_cmd(command)
}

/// Returns the earlier name as it was typed, and the advice.
fn earlier(error: &clap::Error) -> Option<(String, String)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let typed = match error.kind() {
        ErrorKind::UnknownArgument => text(ContextKind::InvalidArg)?.to_owned(),
        ErrorKind::InvalidSubcommand => text(ContextKind::InvalidSubcommand)?.to_owned(),
        ErrorKind::InvalidValue => {
            let flag = text(ContextKind::InvalidArg)?.split_whitespace().next()?;
            format!("{flag} {}", text(ContextKind::InvalidValue)?)
        }
        _ => return None,
    };
    let listed = RENAMED.iter().find(|(earlier, _)| *earlier == typed);
    let instead = match listed {
        Some((_, now)) => format!("use {now}"),
        None => {
            let option = typed.strip_prefix("--")?.replace('-', "_");
            forebay_options::renamed(&option, |now| format!("--{}", now.replace('_', "-")))?
        }
    };
    Some((typed, instead))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> clap::Error {
        let args = line.split(' ').map(Into::into).collect::<Vec<_>>();
        crate::run::parse(&args).unwrap_err()
    }

    #[test]
    fn earlier_names_are_refused_with_the_new_one() {
        for (line, said) in [
            (
                "forebay inspect x --images",
                "--images has another name now: use --deep",
            ),
            ("forebay convert a b --format indexed", "use --to"),
            ("forebay verify x --against=y", "use --compare-source"),
            (
                "forebay pack a b --convert-odd",
                "use --transcode-nonstandard",
            ),
            (
                "forebay pack a b --seek-points fine",
                "use --seek-points dense",
            ),
            (
                "forebay pack a b --seek-points=fine",
                "use --seek-points dense",
            ),
            ("forebay pack a b --no-idx", "use --no-dali-index"),
            ("forebay bench simulate", "use size-cluster"),
            ("forebay bench loader x --seconds 3", "use --duration"),
            (
                "forebay bench loader x --keep-last",
                "use --drop-last, which means the opposite",
            ),
            ("forebay serve x --lanes 4", "use --virtual-ranks"),
        ] {
            let error = refused(line);
            let text = error.to_string();
            assert!(text.contains(said), "{line}: {text}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(
            !refused("forebay pack a b --nothing")
                .to_string()
                .contains("another name")
        );
    }

    /// A table that names a flag which no command has would send users in a circle.
    #[test]
    fn new_names_exist() {
        let mut names = Vec::new();
        collect(&crate::command(), &mut names);
        for (_, now) in RENAMED {
            let name = now.split(' ').next().unwrap();
            assert!(names.iter().any(|known| known == name), "{now}");
        }
    }

    fn collect(command: &clap::Command, names: &mut Vec<String>) {
        names.push(command.get_name().to_owned());
        names.extend(
            command
                .get_arguments()
                .filter_map(|arg| Some(format!("--{}", arg.get_long()?))),
        );
        command
            .get_subcommands()
            .for_each(|sub| collect(sub, names));
    }
}
