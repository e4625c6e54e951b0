//! `forebay completions`: prints completion scripts for shells.

use clap::Args as ClapArgs;
use clap_complete::{Shell, generate};

use crate::console::Console;
use crate::failure::{Failure, Outcome};

/// Print a completion script for your shell
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions zsh > ~/.zfunc/_forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut crate::command(), "forebay", &mut script);
    console.write_bytes(&script);
    Ok(Outcome::Done)
}
