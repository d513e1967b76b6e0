//! Descriptions of all metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use crate::instruments::metric_list::{COUNTERS, GAUGES, HISTOGRAMS};

/// Registers the description and the unit of each metric with the recorder. Call it once, after the
/// recorder is installed.
pub fn describe() {
    for (family, help) in COUNTERS {
        describe_counter!(family.name, Unit::Count, *help);
    }
    for (family, help) in HISTOGRAMS {
        let unit = if family.name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        describe_histogram!(family.name, unit, *help);
    }
    for (name, _, help) in GAUGES {
        let unit = match name {
            name if name.ends_with("_seconds") => Unit::Seconds,
            name if name.ends_with("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        };
        describe_gauge!(*name, unit, *help);
    }
}
