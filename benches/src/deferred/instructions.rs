//! Figure 4: instructions that `DeferLayer` adds to a request whose lock is free.

use super::queue_bench::QueueBench;
use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_result::BenchResult,
    callgrind, report,
};

const PROGRAM: &str = "lockgate-benches-unlocked";

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("4. Instructions of a request whose lock is free, by callgrind");
    let round_values = if callgrind::is_available() {
        let with = callgrind::instructions_per_call(&mut bench.runner, PROGRAM, "with")?;
        let without = callgrind::instructions_per_call(&mut bench.runner, PROGRAM, "without")?;
        println!("  with DeferLayer: {}; without: {}", format_number(with), format_number(without));
        // Lower bound of any such layer: one that only leaves a slot in the request.
        let slot = callgrind::instructions_per_call(&mut bench.runner, PROGRAM, "place")?;
        println!(
            "  a hand-written slot in the request's extensions adds {}",
            format_number(slot - without)
        );
        vec![with - without]
    } else {
        Vec::new()
    };
    Ok(vec![BenchFigure {
        id: "4g",
        description: "instructions that DeferLayer adds where the lock is free".into(),
        unit: "",
        target: FigureTarget::AtMost(500.0),
        round_values,
    }])
}
