//! Replies of `CHARGE_BATCH` and `SETTLE_CHARGE` about counters.

use std::sync::Arc;

use redis::Value;
use smallvec::smallvec;

use super::{
    msgpack::{self, MsgpackValue},
    scripts::CHARGE_BATCH,
};
use crate::{
    error::{Error, ErrorKind},
    store::rate::{ChargeItem, CounterValue, QuotaRule, QuotaSnapshots},
};

/// Reply to one step of the script.
#[derive(Debug, Clone)]
pub(super) struct RawChargeReply {
    pub(super) now_us: u64,
    pub(super) admitted: u64,
    /// Charges of the same step that were admitted after this one.
    pub(super) admitted_later: u64,
    values: CounterValues,
}

/// Numbers about the counters. Most steps have one counter, which is kept inline.
#[derive(Debug, Clone)]
enum CounterValues {
    Inline([u64; INLINE_VALUES]),
    Shared(Arc<[u64]>),
}

/// Most numbers about one counter.
const INLINE_VALUES: usize = 4;

/// Returns how many numbers describe a counter in a reply.
pub(super) fn value_count(item: &ChargeItem) -> usize {
    let spent = match item.rule {
        QuotaRule::Fixed { .. } => 2,
        QuotaRule::Sliding { .. } | QuotaRule::Gcra { .. } => 3,
    };
    spent + usize::from(item.penalty.is_some())
}

impl RawChargeReply {
    /// Creates the reply to a step that was admitted in full and began its window.
    fn new_window([cost, window]: [u64; 2], times: u64, now_us: u64) -> Self {
        let words = CounterValues::Inline([cost.saturating_mul(times), window, 0, 0]);
        Self { now_us, admitted: times, admitted_later: 0, values: words }
    }

    /// Evaluates each counter of a charge.
    pub(super) fn counter_states(&self, items: &[ChargeItem]) -> QuotaSnapshots {
        let mut words = self.values.as_slice();
        let mut state = |item: &ChargeItem| {
            let (own, rest) = words.split_at_checked(value_count(item)).unwrap_or((&[], &[]));
            words = rest;
            let blocked = if item.penalty.is_some() { own.last().copied() } else { None };
            let units = self.admitted_later.saturating_mul(item.cost);
            let count = decode_count(&item.rule, own).without_units(&item.rule, units);
            item.evaluate(count, self.now_us, blocked.unwrap_or(0))
        };
        match items {
            [one] => smallvec![state(one)],
            all => all.iter().map(state).collect(),
        }
    }
}

/// Reader of a batch's reply, one step after the other.
pub(super) struct ChargeReplyReader<'a> {
    input: msgpack::MsgpackReader<'a>,
    now_us: u64,
    /// Number of coming steps that were admitted in full and began their windows.
    new_windows_left: u64,
}

impl<'a> ChargeReplyReader<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Result<Self, Error> {
        let mut words = msgpack::MsgpackReader::from_array(packed).ok_or_else(protocol_error)?;
        match words.next_value() {
            Some(MsgpackValue::Number(now_us)) => {
                Ok(Self { input: words, now_us, new_windows_left: 0 })
            }
            _ => Err(protocol_error()),
        }
    }

    /// Reads the reply to the next step, of `count` numbers and `times` charges. The inner error
    /// belongs to this step, the outer one to the whole batch. `fixed` has cost and window (ms) of
    /// a step of one fixed window and nothing else.
    pub(super) fn next_reply(
        &mut self,
        count: usize,
        times: u64,
        fixed: Option<[u64; 2]>,
    ) -> Result<Result<RawChargeReply, Error>, Error> {
        let now_us = self.now_us;
        if self.new_windows_left == 0 {
            match self.input.next_value() {
                Some(MsgpackValue::Number(admitted)) => {
                    let words = CounterValues::read(&mut self.input, count - 1)?;
                    return Ok(Ok(RawChargeReply {
                        now_us,
                        admitted,
                        admitted_later: 0,
                        values: words,
                    }));
                }
                Some(MsgpackValue::Text(text)) => {
                    return Ok(Err(item_error(CHARGE_BATCH.name, text)));
                }
                Some(MsgpackValue::True) => match self.input.next_value() {
                    Some(MsgpackValue::Number(firsts)) if firsts > 0 => {
                        self.new_windows_left = firsts;
                    }
                    _ => return Err(protocol_error()),
                },
                None => return Err(protocol_error()),
            }
        }
        self.new_windows_left -= 1;
        Ok(Ok(RawChargeReply::new_window(fixed.ok_or_else(protocol_error)?, times, now_us)))
    }
}

impl CounterValues {
    #[expect(clippy::indexing_slicing, reason = "the length was compared")]
    fn read(words: &mut msgpack::MsgpackReader<'_>, count: usize) -> Result<Self, Error> {
        let mut next = || match words.next_value() {
            Some(MsgpackValue::Number(number)) => Ok(number),
            _ => Err(protocol_error()),
        };
        if count <= INLINE_VALUES {
            let mut few = [0; INLINE_VALUES];
            for word in &mut few[..count] {
                *word = next()?;
            }
            return Ok(Self::Inline(few));
        }
        Ok(Self::Shared((0..count).map(|_| next()).collect::<Result<_, _>>()?))
    }

    fn as_slice(&self) -> &[u64] {
        match self {
            Self::Inline(words) => words,
            Self::Shared(words) => words,
        }
    }
}

/// Decodes the value of a counter.
pub(super) fn decode_count(rule: &QuotaRule, words: &[u64]) -> CounterValue {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    match rule {
        QuotaRule::Fixed { .. } => CounterValue::Fixed { spent: word(0), left_ms: word(1) },
        QuotaRule::Sliding { .. } => {
            CounterValue::Sliding { previous: word(0), spent: word(1), left_ms: word(2).max(1) }
        }
        QuotaRule::Gcra { .. } => {
            CounterValue::Gcra { debt: word(0), gross_debt: word(1), debt_id: word(2) }
        }
    }
}

fn protocol_error() -> Error {
    Error::new(ErrorKind::Protocol, CHARGE_BATCH.name)
}

/// Decodes a number. A counter that was set below zero by hand counts as zero.
pub(super) fn decode_number(script: &'static str, word: Option<&Value>) -> Result<u64, Error> {
    match word {
        Some(Value::Int(n)) => Ok(u64::try_from(*n).unwrap_or(0)),
        _ => Err(Error::new(ErrorKind::Protocol, script)),
    }
}

/// Logs the error of one item of a batch and returns it.
pub(super) fn item_error(script: &'static str, text: &[u8]) -> Error {
    let error = String::from_utf8_lossy(text);
    crate::throttle::throttled!(error, %error, script, "the server rejected one charge of a batch");
    Error::new(ErrorKind::Protocol, script)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED_WINDOW: Option<[u64; 2]> = Some([3, 60_000]);

    fn read_charge(
        reader: &mut ChargeReplyReader<'_>,
        times: u64,
        fixed: Option<[u64; 2]>,
    ) -> Option<(u64, [u64; 2])> {
        let counted = reader.next_reply(3, times, fixed).ok()?.ok()?;
        Some((counted.admitted, [counted.values.as_slice()[0], counted.values.as_slice()[1]]))
    }

    #[test]
    fn run_of_charges_that_open_windows_is_expanded() {
        // {7, true, 2, 1, 9, 50, true, 1}
        let packed = [0x98, 7, 0xc3, 2, 1, 9, 50, 0xc3, 1];
        let mut reader = ChargeReplyReader::new(&packed).unwrap();
        assert_eq!(read_charge(&mut reader, 1, FIXED_WINDOW), Some((1, [3, 60_000])));
        assert_eq!(read_charge(&mut reader, 4, FIXED_WINDOW), Some((4, [12, 60_000])));
        assert_eq!(read_charge(&mut reader, 1, FIXED_WINDOW), Some((1, [9, 50])));
        assert_eq!(read_charge(&mut reader, 1, FIXED_WINDOW), Some((1, [3, 60_000])));
        assert_eq!(read_charge(&mut reader, 1, FIXED_WINDOW), None, "there is no more");
        let mut reader = ChargeReplyReader::new(&packed).unwrap();
        assert_eq!(
            read_charge(&mut reader, 1, None),
            None,
            "of what is no fixed window it can't be said"
        );
        assert_eq!(
            read_charge(&mut ChargeReplyReader::new(&[0x93, 7, 0xc3, 0]).unwrap(), 1, FIXED_WINDOW),
            None
        );
    }
}
