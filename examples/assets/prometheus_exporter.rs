//! The exporter of metrics to Prometheus, a module of both demos.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds of the histograms of durations, from a call in the same data centre to a deferred
/// request that waits for an hour.
const SECONDS_BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0,
    3600.0,
];

/// Upper bounds of the histograms of ratios.
const RATIO_BUCKETS: [f64; 6] = [0.0, 0.05, 0.1, 0.25, 0.5, 0.9];

/// Upper bounds of the histograms of sizes.
const SIZE_BUCKETS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Time between two settlements of recorded values, which take memory until then.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Installs the recorder of this process. The histograms have buckets, because quantiles of
/// summaries cannot be added over processes.
pub(crate) fn install() -> Result<PrometheusHandle, BuildError> {
    let suffix = |suffix: &str| Matcher::Suffix(suffix.to_owned());
    let exporter = PrometheusBuilder::new()
        .set_buckets_for_metric(suffix("_seconds"), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(suffix("_ratio"), &RATIO_BUCKETS)?
        .set_buckets_for_metric(suffix("_size"), &SIZE_BUCKETS)?
        .install_recorder()?;
    tokio::spawn({
        let exporter = exporter.clone();
        async move {
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                exporter.run_upkeep();
            }
        }
    });
    Ok(exporter)
}
