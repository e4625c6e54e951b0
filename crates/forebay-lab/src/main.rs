//! The program `forebay-lab`: everything is in the library.

fn main() {
    std::process::exit(forebay_lab::main_from(std::env::args_os()));
}
