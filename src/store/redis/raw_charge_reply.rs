//! Replies of `CHARGE_BATCH` and `SETTLE_CHARGE` about counters.

use std::sync::Arc;

use redis::Value;
use smallvec::smallvec;

use super::{
    msgpack_reader::{MsgpackReader, MsgpackValue},
    script_sources::CHARGE_BATCH,
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

/// Cost and window of a charge of one fixed window and nothing else.
#[derive(Debug, Clone, Copy)]
pub(super) struct FixedWindowCharge {
    pub(super) cost: u64,
    pub(super) window_ms: u64,
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
    fn new_window(charge: FixedWindowCharge, times: u64, now_us: u64) -> Self {
        let spent = charge.cost.saturating_mul(times);
        let values = CounterValues::Inline([spent, charge.window_ms, 0, 0]);
        Self { now_us, admitted: times, admitted_later: 0, values }
    }

    /// Evaluates each counter of a charge.
    pub(super) fn counter_states(&self, items: &[ChargeItem]) -> QuotaSnapshots {
        let mut values = self.values.as_slice();
        let mut evaluate = |item: &ChargeItem| {
            let (counter_values, following) =
                values.split_at_checked(value_count(item)).unwrap_or((&[], &[]));
            values = following;
            let block_ms =
                if item.penalty.is_some() { counter_values.last().copied() } else { None };
            let units = self.admitted_later.saturating_mul(item.cost);
            let count = decode_count(&item.rule, counter_values).without_units(&item.rule, units);
            item.evaluate(count, self.now_us, block_ms.unwrap_or(0))
        };
        match items {
            [item] => smallvec![evaluate(item)],
            items => items.iter().map(evaluate).collect(),
        }
    }
}

/// Reader of a batch's reply, one step after the other.
pub(super) struct ChargeReplyReader<'a> {
    input: MsgpackReader<'a>,
    now_us: u64,
    /// Number of coming steps that were admitted in full and began their windows.
    remaining_new_windows: u64,
}

impl<'a> ChargeReplyReader<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Result<Self, Error> {
        let mut values = MsgpackReader::from_array(packed).ok_or_else(protocol_error)?;
        match values.next_value() {
            Some(MsgpackValue::Number(now_us)) => {
                Ok(Self { input: values, now_us, remaining_new_windows: 0 })
            }
            _ => Err(protocol_error()),
        }
    }

    /// Reads the reply to the next step, of `value_count` numbers and `times` charges. The inner
    /// error belongs to this step, the outer one to the whole batch. `fixed_window` is the charge
    /// of a step of one fixed window and nothing else.
    pub(super) fn next_reply(
        &mut self,
        value_count: usize,
        times: u64,
        fixed_window: Option<FixedWindowCharge>,
    ) -> Result<Result<RawChargeReply, Error>, Error> {
        let now_us = self.now_us;
        if self.remaining_new_windows == 0 {
            match self.input.next_value() {
                Some(MsgpackValue::Number(admitted)) => {
                    let values = CounterValues::read(&mut self.input, value_count - 1)?;
                    return Ok(Ok(RawChargeReply { now_us, admitted, admitted_later: 0, values }));
                }
                Some(MsgpackValue::Text(text)) => {
                    return Ok(Err(item_error(CHARGE_BATCH.name, text)));
                }
                Some(MsgpackValue::True) => match self.input.next_value() {
                    Some(MsgpackValue::Number(count)) if count > 0 => {
                        self.remaining_new_windows = count;
                    }
                    _ => return Err(protocol_error()),
                },
                None => return Err(protocol_error()),
            }
        }
        self.remaining_new_windows -= 1;
        Ok(Ok(RawChargeReply::new_window(fixed_window.ok_or_else(protocol_error)?, times, now_us)))
    }
}

impl CounterValues {
    #[expect(clippy::indexing_slicing, reason = "the length was compared")]
    fn read(values: &mut MsgpackReader<'_>, count: usize) -> Result<Self, Error> {
        let mut next = || match values.next_value() {
            Some(MsgpackValue::Number(number)) => Ok(number),
            _ => Err(protocol_error()),
        };
        if count <= INLINE_VALUES {
            let mut inline = [0; INLINE_VALUES];
            for value in &mut inline[..count] {
                *value = next()?;
            }
            return Ok(Self::Inline(inline));
        }
        Ok(Self::Shared((0..count).map(|_| next()).collect::<Result<_, _>>()?))
    }

    fn as_slice(&self) -> &[u64] {
        match self {
            Self::Inline(values) => values,
            Self::Shared(values) => values,
        }
    }
}

/// Decodes the value of a counter.
pub(super) fn decode_count(rule: &QuotaRule, values: &[u64]) -> CounterValue {
    let value = |index: usize| values.get(index).copied().unwrap_or(0);
    match rule {
        QuotaRule::Fixed { .. } => CounterValue::Fixed { spent: value(0), left_ms: value(1) },
        QuotaRule::Sliding { .. } => {
            CounterValue::Sliding { previous: value(0), spent: value(1), left_ms: value(2).max(1) }
        }
        QuotaRule::Gcra { .. } => {
            CounterValue::Gcra { debt: value(0), gross_debt: value(1), debt_id: value(2) }
        }
    }
}

fn protocol_error() -> Error {
    Error::new(ErrorKind::Protocol, CHARGE_BATCH.name)
}

/// Decodes a number. A counter that was set below zero by hand counts as zero.
pub(super) fn decode_number(script: &'static str, value: Option<&Value>) -> Result<u64, Error> {
    match value {
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

    const FIXED_WINDOW: Option<FixedWindowCharge> =
        Some(FixedWindowCharge { cost: 3, window_ms: 60_000 });

    fn read_charge(
        reader: &mut ChargeReplyReader<'_>,
        times: u64,
        fixed_window: Option<FixedWindowCharge>,
    ) -> Option<(u64, [u64; 2])> {
        let reply = reader.next_reply(3, times, fixed_window).ok()?.ok()?;
        Some((reply.admitted, [reply.values.as_slice()[0], reply.values.as_slice()[1]]))
    }

    #[test]
    fn charges_that_open_windows_are_expanded() {
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
            "the reply does not tell it for other algorithms"
        );
        assert_eq!(
            read_charge(&mut ChargeReplyReader::new(&[0x93, 7, 0xc3, 0]).unwrap(), 1, FIXED_WINDOW),
            None
        );
    }
}
