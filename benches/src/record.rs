//! What a worker has seen: every acquisition, as bytes, and what is left when the window ends.

use serde::{Deserialize, Serialize};

/// One acquisition. Times are nanoseconds, moments of the [clock](crate::clock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// The moment the lock was had: between the end of `acquire` and anything else the holder does.
    pub(crate) at: u64,
    /// From asking to having.
    pub(crate) wait: u64,
    /// From having to asking for its release: the work inside.
    pub(crate) held: u64,
    pub(crate) task: u32,
}

/// What comes before the events.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) events: usize,
    /// Calls that failed: a lock that was refused, a release that was not sure.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// The longest wait that was not over when the window ended, in nanoseconds.
    pub(crate) still_waiting: u64,
}

impl Event {
    pub(crate) const SIZE: usize = 28;

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.at, self.wait, self.held] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.task.to_le_bytes());
    }

    pub(crate) fn read_all(bytes: &[u8]) -> Vec<Self> {
        bytes.chunks_exact(Self::SIZE).map(Self::read).collect()
    }

    fn read(bytes: &[u8]) -> Self {
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        let mut task = [0; 4];
        task.copy_from_slice(&bytes[24..28]);
        let task = u32::from_le_bytes(task);
        Self { at: number(0), wait: number(8), held: number(16), task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        let events =
            [1, 7].map(|n| Event { at: n << 40, wait: n, held: u64::MAX - n, task: u32::MAX - 1 });
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.write(&mut bytes));
        assert_eq!(bytes.len(), 2 * Event::SIZE);
        assert_eq!(Event::read_all(&bytes), events);
    }
}
