//! Results of a lock worker: a header, then every acquisition in a binary encoding.

use serde::{Deserialize, Serialize};

/// One acquisition. Times are nanoseconds; `acquired_at` is one of the shared
/// [clock](crate::clock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcquireEvent {
    /// Read directly after `acquire` returned, before any other step of the holder.
    pub(crate) acquired_at: u64,
    /// Duration of `acquire`.
    pub(crate) wait: u64,
    /// From `acquired_at` to the call of `release`: the work under the lock.
    pub(crate) held_for: u64,
    pub(crate) task: u32,
}

/// Header in front of the encoded events, sent as one line of JSON.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct EventsHeader {
    pub(crate) event_count: usize,
    /// Failed calls: refused acquires, and releases that the server did not confirm.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Longest wait that had not ended when the window did, in nanoseconds.
    pub(crate) longest_open_wait: u64,
}

impl AcquireEvent {
    pub(crate) const ENCODED_SIZE: usize = 28;

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        for number in [self.acquired_at, self.wait, self.held_for] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.task.to_le_bytes());
    }

    pub(crate) fn decode_all(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks_exact(Self::ENCODED_SIZE).map(Self::decode).collect()
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |offset: usize| {
            let mut number_bytes = [0; 8];
            number_bytes.copy_from_slice(&bytes[offset..offset + 8]);
            u64::from_le_bytes(number_bytes)
        };
        let mut task_bytes = [0; 4];
        task_bytes.copy_from_slice(&bytes[24..28]);
        let task = u32::from_le_bytes(task_bytes);
        Self { acquired_at: number(0), wait: number(8), held_for: number(16), task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_events_decode_to_the_same_events() {
        let events = [1, 7].map(|n| AcquireEvent {
            acquired_at: n << 40,
            wait: n,
            held_for: u64::MAX - n,
            task: u32::MAX - 1,
        });
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.encode(&mut bytes));
        assert_eq!(bytes.len(), 2 * AcquireEvent::ENCODED_SIZE);
        assert_eq!(AcquireEvent::decode_all(&bytes), events);
    }
}
