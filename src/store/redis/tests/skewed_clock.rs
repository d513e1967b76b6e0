//! Servers with a wrong clock, by a preloaded library that is compiled on demand.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Path of the compiled library. Several tests of this process may use it.
static CLOCK_LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the clock of a process ahead, by seconds.
pub(super) fn set_clock_ahead(command: &mut Command, clock_lead_secs: i64) {
    let library = CLOCK_LIBRARY.get_or_init(compile_clock_library);
    command.env("LD_PRELOAD", library).env("LOCKGATE_TESTS_CLOCK", clock_lead_secs.to_string());
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
