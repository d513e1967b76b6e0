//! Process whose requests callgrind counts, built without metrics. `lockgate-benches` starts it.

#[path = "../counted_requests.rs"]
mod counted_requests;

fn main() -> counted_requests::MetricsBenchResult<()> {
    counted_requests::run()
}
