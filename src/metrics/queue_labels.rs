//! [`QueueLabels`]: values of the label `queue` of gauges.

use std::collections::{BTreeMap, BTreeSet};

use crate::instruments::handle_table::{MAX_LABEL_VALUES, OTHER};

/// Queues that have had gauges, at most `MAX_LABEL_VALUES`. They are remembered, because an
/// exporter shows the last value of a gauge for as long as the process lives.
#[derive(Debug, Default)]
pub(super) struct QueueLabels(BTreeSet<String>);

impl QueueLabels {
    /// Returns the values by their label. Values of one label are merged: those of one queue, and
    /// those of all queues beyond the bound. A queue that is gone has the default value.
    pub(super) fn merge<T: Default>(
        &mut self,
        values: impl IntoIterator<Item = (String, T)>,
        merge: impl Fn(&mut T, T),
    ) -> BTreeMap<String, T> {
        let mut merged: BTreeMap<_, _> =
            self.0.iter().map(|label| (label.clone(), T::default())).collect();
        for (queue, value) in values {
            let has_label = self.0.len() < MAX_LABEL_VALUES || self.0.contains(&queue);
            let label = if has_label { queue } else { OTHER.to_owned() };
            self.0.insert(label.clone());
            merge(merged.entry(label).or_default(), value);
        }
        merged
    }
}
