//! The `forebay` binary: everything is in the library, which the Python package calls too.

fn main() {
    std::process::exit(forebay_cli::main_from(std::env::args_os()));
}
