//! Figure 5: instructions of one refusal, and those that metrics add to a request, counted by
//! callgrind. They do not depend on the load of the machine.

use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    callgrind, report,
};

const PROGRAM: &str = "lockgate-benches-refused";

/// The same requests without metrics, and recorded for Prometheus.
const UNMETERED_PROGRAM: &str = "lockgate-benches-unmetered";
const METERED_PROGRAM: &str = "lockgate-benches-metered";

/// Most instructions that metrics may add to a request.
const MAX_METRICS_INSTRUCTIONS: f64 = 150.0;

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
    let mut figures = vec![refusal_figure(vec![layer - bare])];
    figures.extend(count_metrics(bench)?);
    Ok(figures)
}

/// Counts what metrics add to a request that is limited, and to one that is locked. The store is
/// embedded: on Redis, the metrics of its calls come on top, once for each batch of requests.
fn count_metrics(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    let modes = [
        ("5b", "limited", "instructions that metrics add to a limited request"),
        ("5c", "locked", "instructions that metrics add to a locked request"),
    ];
    let mut figures = Vec::new();
    for (id, mode, description) in modes {
        let mut count = |program| callgrind::instructions_per_counted_call(bench, program, mode);
        let (without, with) = (count(UNMETERED_PROGRAM)?, count(METERED_PROGRAM)?);
        let (without_text, with_text) = (format_number(without), format_number(with));
        println!("  a {mode} request without metrics: {without_text}; with them: {with_text}");
        figures.push(BenchFigure {
            id,
            description: description.into(),
            unit: "",
            target: FigureTarget::AtMost(MAX_METRICS_INSTRUCTIONS),
            round_values: vec![with - without],
        });
    }
    Ok(figures)
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
