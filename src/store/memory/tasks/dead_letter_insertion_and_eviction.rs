//! Dead letters: their creation, and their deletion by expiry, number, size or purge.

use std::sync::Arc;

use super::{QueueTransaction, settle_and_poll::PollState};
use crate::{
    durations::saturating_micros,
    store::tasks::{MAX_TASKS_PER_STEP, TaskId},
};

impl QueueTransaction<'_> {
    pub(super) fn move_to_dead_letters(
        &mut self,
        id: &TaskId,
        bytes: u64,
        unique_key: Option<&Arc<str>>,
        poll: &mut PollState<'_>,
    ) {
        self.release_unique_key(unique_key, id);
        let limits = poll.command.dead_letter_limits;
        self.queue
            .dead_letters
            .insert(id, self.now_us.saturating_add(saturating_micros(limits.retention)));
        self.queue.stats.dead += 1;
        self.queue.stats.bytes = self.queue.stats.bytes.saturating_sub(bytes);
        self.queue.stats.dead_bytes += self.record_len(id);
        self.evict_dead_letters(Some(id), poll);
    }

    /// Evicts the oldest letters while there are too many or too large ones; the newest stays if
    /// there is another.
    fn evict_dead_letters(&mut self, newest: Option<&TaskId>, poll: &mut PollState<'_>) {
        let limits = poll.command.dead_letter_limits;
        while poll.trims_left > 0
            && (self.queue.dead_letters.len() as u64 > limits.max_count
                || self.queue.stats.dead_bytes > limits.max_bytes)
        {
            let oldest = self.queue.dead_letters.oldest_except(newest).cloned();
            poll.trims_left -= 1;
            self.delete_dead_letters(oldest.as_slice());
        }
    }

    pub(super) fn delete_dead_letters(&mut self, ids: &[TaskId]) {
        for id in ids {
            let stats = &self.queue.stats;
            self.queue.stats.dead_bytes = stats.dead_bytes.saturating_sub(self.record_len(id));
            self.queue.dead_letters.remove(id);
            self.queue.task_records.remove(id);
            self.queue.task_histories.remove(id);
            self.queue.stats.trimmed += 1;
        }
    }

    /// Deletes expired letters, and evicts others beyond the limits, at most once a second.
    pub(super) fn sweep_dead_letters(&mut self, poll: &mut PollState<'_>) {
        let elapsed_us = self.now_us.checked_sub(self.queue.last_sweep_us);
        if elapsed_us.is_some_and(|elapsed_us| elapsed_us < 1_000_000) {
            return;
        }
        self.queue.last_sweep_us = self.now_us;
        let expired =
            self.queue.dead_letters.iter().take_while(|(expires_us, _)| *expires_us <= self.now_us);
        let expired: Vec<_> = expired.take(MAX_TASKS_PER_STEP).map(|(_, id)| id.clone()).collect();
        self.delete_dead_letters(&expired);
        self.evict_dead_letters(None, poll);
        poll.has_more_to_trim = expired.len() == MAX_TASKS_PER_STEP || poll.trims_left == 0;
    }
}
