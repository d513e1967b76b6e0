//! Metrics for the recorder of the crate [`metrics`](https://docs.rs/metrics) (feature `metrics`).
//!
//! Counters and histograms are recorded where they happen, in every process. What happens before a
//! recorder is installed is not counted. Gauges are set by [`collect`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use lockgate::{Store, metrics};
//!
//! // Install a recorder here, such as that of `metrics-exporter-prometheus`.
//! metrics::describe();
//! let store = Store::memory();
//! metrics::collect(&store).await; // before each export
//! # }
//! ```
//!
//! docs/observability.md lists all metrics and their labels.

mod collector;
mod describe;
mod queue_gauges;
mod queue_labels;
#[cfg(test)]
mod tests;

pub use self::{collector::collect, describe::describe};
