//! Figure 5: instructions of one refusal, counted by callgrind. They do not depend on what else runs.

use crate::{
    bench::Bench,
    callgrind,
    figure::{Figure, Line, short},
    outcome::Outcome,
    report,
};

const PROGRAM: &str = "lockgate-benches-refused";

/// What it does.
const THROUGH_THE_LAYER: &str = "layer";
const BARE: &str = "bare";
const BY_CHECK: &str = "check";

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("5. Instructions of a refusal, by callgrind");
    if !callgrind::there() {
        return Ok(vec![figure(Vec::new())]);
    }
    let layer = callgrind::each(bench, PROGRAM, THROUGH_THE_LAYER)?;
    let bare = callgrind::each(bench, PROGRAM, BARE)?;
    let check = callgrind::each(bench, PROGRAM, BY_CHECK)?;
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
