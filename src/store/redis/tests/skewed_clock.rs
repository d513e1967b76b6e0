//! Servers whose clock is wrong: a library that is preloaded, and compiled on the spot.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Of this process, which may run several tests at once.
static CLOCK_LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Lets the clock of the process be so many seconds ahead.
pub(super) fn set_clock_ahead(command: &mut Command, ahead: i64) {
    let library = CLOCK_LIBRARY.get_or_init(compile_clock_library);
    command.env("LD_PRELOAD", library).env("LOCKGATE_TESTS_CLOCK", ahead.to_string());
}

fn compile_clock_library() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis/tests/clock.c");
    let name = format!("lockgate-test-{}-clock.so", std::process::id());
    let library = std::env::temp_dir().join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    let done =
        compiler.status().expect("these tests need a C compiler, as Rust's linker does: `cc`");
    assert!(done.success(), "the clock can't be compiled");
    library
}
