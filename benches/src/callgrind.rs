//! Instructions of one of what a small program does again and again, counted by callgrind: the same
//! whatever else runs.

use std::{
    env, io,
    process::{Command, Stdio},
};

use crate::{bench::Bench, outcome::Outcome};

/// Times of the two runs; their difference has no start and no end of a process in it.
const FEW: u32 = 1_000;
const MANY: u32 = 11_000;

/// Whether it can count. Said if not.
pub(crate) fn there() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    let there = version.is_ok_and(|status| status.success());
    if !there {
        println!("  valgrind is not installed (apt-get install valgrind): nothing was counted");
    }
    there
}

/// Instructions of one of what this program, which lies beside ours, does when told so.
pub(crate) fn each(bench: &mut Bench, program: &str, what: &str) -> Outcome<f64> {
    let (few, many) = (count(bench, program, what, FEW)?, count(bench, program, what, MANY)?);
    Ok((many - few) / f64::from(MANY - FEW))
}

/// Instructions of a process that does it so often.
fn count(bench: &mut Bench, program: &str, what: &str, times: u32) -> Outcome<f64> {
    bench.server.flush()?;
    let program = env::current_exe()?.with_file_name(program);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([what, &bench.server.port().to_string(), &times.to_string()])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(io::Error::other(format!("under valgrind: {said}")).into());
    }
    collected(&said).ok_or_else(|| format!("valgrind counted nothing: {said}").into())
}

/// `==12== Collected : 345` is 345.
fn collected(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_collected() {
        assert_eq!(collected("==1== x\n==1== Collected : 1234\n==1== \n"), Some(1234.0));
        assert_eq!(collected("==1== x"), None);
    }
}
