//! [`CounterFamily`] and [`HistogramFamily`]: handles of one metric, by the value of its label from
//! code.

use std::sync::OnceLock;

use metrics::{Counter, Histogram, Key, Label, Level, Metadata, Recorder};

use super::handle_table::{HandleTable, LabelHandles};

/// Origin of the metrics, for recorders that filter by it.
static METADATA: Metadata<'static> = Metadata::new("lockgate", Level::INFO, Some("lockgate"));

/// Counter with a label from code and further labels with fixed values.
pub(crate) struct CounterFamily {
    pub(crate) name: &'static str,
    /// Name of the label from code.
    pub(crate) label: &'static str,
    /// Further labels with their values. A handle is found by one index for each.
    pub(crate) variants: &'static [(&'static str, &'static [&'static str])],
    handles: HandleTable<Counter>,
}

/// Histogram with a label from code.
pub(crate) struct HistogramFamily {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    handles: HandleTable<Histogram>,
}

impl CounterFamily {
    pub(crate) const fn new(
        name: &'static str,
        label: &'static str,
        variants: &'static [(&'static str, &'static [&'static str])],
    ) -> Self {
        Self { name, label, variants, handles: HandleTable::new() }
    }

    /// Adds 1 for this value of the label, and these indices of the variants' values.
    pub(super) fn increment(&self, value: &str, indices: &[usize]) {
        let lengths = self.variants.iter().map(|(_, values)| values.len());
        let index = indices.iter().zip(lengths).fold(0, |index, (next, len)| index * len + next);
        let count = || self.variants.iter().map(|(_, values)| values.len()).product();
        if let Some(LabelHandles { value, handles }) = self.handles.find_or_add(value, count)
            && let Some(handle) = handles.get(index)
        {
            let register = |recorder: &dyn Recorder| self.register(recorder, value, indices);
            with_handle(handle, register, |counter| counter.increment(1));
        }
    }

    fn register(&self, recorder: &dyn Recorder, value: &str, indices: &[usize]) -> Counter {
        let mut labels = vec![Label::new(self.label, value.to_owned())];
        for ((name, values), index) in self.variants.iter().zip(indices) {
            labels.push(Label::new(*name, values.get(*index).copied().unwrap_or_default()));
        }
        recorder.register_counter(&Key::from_parts(self.name, labels), &METADATA)
    }
}

impl HistogramFamily {
    pub(crate) const fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label, handles: HandleTable::new() }
    }

    pub(super) fn record(&self, value: &str, sample: f64) {
        if let Some(LabelHandles { value, handles }) = self.handles.find_or_add(value, || 1)
            && let Some(handle) = handles.first()
        {
            let register = |recorder: &dyn Recorder| {
                let labels = vec![Label::new(self.label, value.to_string())];
                recorder.register_histogram(&Key::from_parts(self.name, labels), &METADATA)
            };
            with_handle(handle, register, |histogram| histogram.record(sample));
        }
    }
}

/// Uses a handle, and keeps it, unless no recorder is installed: the one that the facade has until
/// then is of size 0, and its handles count nothing, even after another is installed.
fn with_handle<H>(
    cell: &OnceLock<H>,
    register: impl FnOnce(&dyn Recorder) -> H,
    apply: impl FnOnce(&H),
) {
    if let Some(handle) = cell.get() {
        return apply(handle);
    }
    metrics::with_recorder(|recorder| {
        let handle = register(recorder);
        apply(&handle);
        if size_of_val(recorder) > 0 {
            let _ = cell.set(handle);
        }
    });
}
