//! Process whose requests callgrind counts, recorded for Prometheus. `lockgate-benches` starts it.

#[path = "../counted_requests.rs"]
mod counted_requests;

use metrics_exporter_prometheus::PrometheusBuilder;

fn main() -> counted_requests::MetricsBenchResult<()> {
    PrometheusBuilder::new().install_recorder()?;
    counted_requests::run()
}
