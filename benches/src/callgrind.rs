//! Instructions per call of a small program, counted by callgrind. The count does not depend on the
//! load of the machine.

use std::{
    env, io,
    process::{Command, Stdio},
};

use crate::{bench_result::BenchResult, bench_runner::BenchRunner};

/// Calls of the two runs. Their difference excludes the start and the end of the process.
const SHORT_RUN_CALLS: u32 = 1_000;
const LONG_RUN_CALLS: u32 = 11_000;

/// Returns true if valgrind is installed, and prints a hint if it is not.
pub(crate) fn is_available() -> bool {
    let status = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    let is_installed = status.is_ok_and(|status| status.success());
    if !is_installed {
        println!(
            "  valgrind is not installed (apt-get install valgrind): no instructions are counted"
        );
    }
    is_installed
}

/// Returns the instructions per call of `program`, a binary beside this one, in `mode`.
pub(crate) fn instructions_per_call(
    bench: &mut BenchRunner,
    program: &str,
    mode: &str,
) -> BenchResult<f64> {
    let short_run = count_instructions(bench, program, mode, SHORT_RUN_CALLS, &[])?;
    let long_run = count_instructions(bench, program, mode, LONG_RUN_CALLS, &[])?;
    Ok((long_run - short_run) / f64::from(LONG_RUN_CALLS - SHORT_RUN_CALLS))
}

/// Like [`instructions_per_call`], counted inside of the function `run_counted` only. For a program
/// whose start takes a varying number of instructions, as that of Prometheus, which calibrates its
/// clock.
pub(crate) fn instructions_per_counted_call(
    bench: &mut BenchRunner,
    program: &str,
    mode: &str,
) -> BenchResult<f64> {
    let options = ["--collect-atstart=no", "--toggle-collect=*::run_counted"];
    let count = count_instructions(bench, program, mode, LONG_RUN_CALLS, &options)?;
    Ok(count / f64::from(LONG_RUN_CALLS))
}

/// Counts the instructions of a process that makes `calls` calls.
fn count_instructions(
    bench: &mut BenchRunner,
    program: &str,
    mode: &str,
    calls: u32,
    options: &[&str],
) -> BenchResult<f64> {
    bench.server.flush()?;
    let program = env::current_exe()?.with_file_name(program);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(options)
        .arg(program)
        .args([mode, &bench.server.port().to_string(), &calls.to_string()])
        .stdin(Stdio::null())
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(io::Error::other(format!("the run under valgrind failed: {stderr}")).into());
    }
    parse_collected(&stderr)
        .ok_or_else(|| format!("no instruction count in the output of valgrind: {stderr}").into())
}

/// Parses 345 out of `==12== Collected : 345`.
fn parse_collected(stderr: &str) -> Option<f64> {
    let (_, count) = stderr.lines().find_map(|line| line.split_once("Collected :"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_line_is_parsed() {
        assert_eq!(parse_collected("==1== x\n==1== Collected : 1234\n==1== \n"), Some(1234.0));
        assert_eq!(parse_collected("==1== x"), None);
    }
}
