//! Figure 5: instructions of one refusal, counted by callgrind. They do not depend on what else runs.

use std::{
    env, io,
    process::{Command, Stdio},
};

use crate::{
    bench::Bench,
    figure::{Figure, Line, short},
    outcome::Outcome,
    report,
};

/// Refusals of the two runs; their difference has no start and no end of a process in it.
const FEW: u32 = 1_000;
const MANY: u32 = 11_000;

/// What `lockgate-benches-refused` does so many times.
const THROUGH_THE_LAYER: &str = "layer";
const BARE: &str = "bare";
const BY_CHECK: &str = "check";

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("5. Instructions of a refusal, by callgrind");
    if !there() {
        println!("  valgrind is not installed (apt-get install valgrind): nothing was counted");
        return Ok(vec![figure(Vec::new())]);
    }
    let layer = each(bench, THROUGH_THE_LAYER)?;
    let bare = each(bench, BARE)?;
    let check = each(bench, BY_CHECK)?;
    println!(
        "  a request through RateLimitLayer: {}; the same without: {}",
        short(layer),
        short(bare)
    );
    println!("  RateLimit::check alone: {}", short(check));
    Ok(vec![figure(vec![layer - bare])])
}

fn figure(rounds: Vec<f64>) -> Figure {
    Figure {
        id: "5a",
        what: "instructions per refused request, without the service's own".into(),
        unit: "",
        line: Line::AtMost(10_000.0),
        rounds,
    }
}

fn there() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Instructions of one.
fn each(bench: &mut Bench, what: &str) -> Outcome<f64> {
    let (few, many) = (count(bench, what, FEW)?, count(bench, what, MANY)?);
    Ok((many - few) / f64::from(MANY - FEW))
}

/// Instructions of a process that does it so often.
fn count(bench: &mut Bench, what: &str, times: u32) -> Outcome<f64> {
    bench.server.flush()?;
    let program = env::current_exe()?.with_file_name("lockgate-benches-refused");
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
