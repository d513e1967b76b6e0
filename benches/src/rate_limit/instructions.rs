//! Figure 5: instructions of one refusal, counted by callgrind. They do not depend on the load of
//! the machine.

use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    callgrind, report,
};

const PROGRAM: &str = "lockgate-benches-refused";

/// Modes of the program.
const LAYER_MODE: &str = "layer";
const BARE_MODE: &str = "bare";
const CHECK_MODE: &str = "check";

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("5. Instructions of a refusal, by callgrind");
    if !callgrind::is_available() {
        return Ok(vec![refusal_figure(Vec::new())]);
    }
    let layer = callgrind::instructions_per_call(bench, PROGRAM, LAYER_MODE)?;
    let bare = callgrind::instructions_per_call(bench, PROGRAM, BARE_MODE)?;
    let check = callgrind::instructions_per_call(bench, PROGRAM, CHECK_MODE)?;
    println!(
        "  a request through RateLimitLayer: {}; without the layer: {}",
        format_number(layer),
        format_number(bare)
    );
    println!("  RateLimiter::check alone: {}", format_number(check));
    Ok(vec![refusal_figure(vec![layer - bare])])
}

fn refusal_figure(round_values: Vec<f64>) -> BenchFigure {
    BenchFigure {
        id: "5a",
        description: "instructions per refused request, without the service's own".into(),
        unit: "",
        target: FigureTarget::AtMost(10_000.0),
        round_values,
    }
}
