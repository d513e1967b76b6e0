//! What `charge.lua` and `settle_charge.lua` answer about counters.

use std::sync::Arc;

use redis::Value;
use smallvec::smallvec;

use super::{
    packed::{self, Word},
    script::CHARGE,
};
use crate::{
    error::{Error, ErrorKind},
    store::rate::{CounterValue, ChargeItem, QuotaRule, QuotaSnapshots},
};

/// The numbers of one step.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    pub(super) now_us: u64,
    pub(super) admitted: u64,
    /// How many of the same step were admitted after it.
    pub(super) later: u64,
    words: Words,
}

/// Most steps are about one counter.
#[derive(Debug, Clone)]
enum Words {
    Few([u64; FEW]),
    Many(Arc<[u64]>),
}

/// Most numbers of one counter.
const FEW: usize = 4;

/// How many numbers tell of a counter.
pub(super) fn shape(item: &ChargeItem) -> usize {
    let spent = match item.rule {
        QuotaRule::Fixed { .. } => 2,
        QuotaRule::Sliding { .. } | QuotaRule::Gcra { .. } => 3,
    };
    spent + usize::from(item.penalty.is_some())
}

impl Counted {
    /// What a step comes to that was let in as often as it was asked, by the first charge of a window.
    fn first([cost, window]: [u64; 2], times: u64, now_us: u64) -> Self {
        let words = Words::Few([cost.saturating_mul(times), window, 0, 0]);
        Self { now_us, admitted: times, later: 0, words }
    }

    /// What each of its counters says.
    pub(super) fn states(&self, items: &[ChargeItem]) -> QuotaSnapshots {
        let mut words = self.words.all();
        let mut state = |item: &ChargeItem| {
            let (own, rest) = words.split_at_checked(shape(item)).unwrap_or((&[], &[]));
            words = rest;
            let blocked = if item.penalty.is_some() { own.last().copied() } else { None };
            let units = self.later.saturating_mul(item.cost);
            let count = count(&item.rule, own).without_units(&item.rule, units);
            item.evaluate(count, self.now_us, blocked.unwrap_or(0))
        };
        match items {
            [one] => smallvec![state(one)],
            all => all.iter().map(state).collect(),
        }
    }
}

/// The list of a call, step by step.
pub(super) struct Reader<'a> {
    words: packed::Words<'a>,
    now_us: u64,
    /// Of the steps to come, how many began a window.
    firsts: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn of(packed: &'a [u8]) -> Result<Self, Error> {
        let mut words = packed::Words::of(packed).ok_or_else(odd)?;
        match words.next() {
            Some(Word::Number(now_us)) => Ok(Self { words, now_us, firsts: 0 }),
            _ => Err(odd()),
        }
    }

    /// The next step, of so many numbers and so many charges; an error inside is the step's own, one outside is that
    /// of all. `fixed`: cost and ms of the window, if it is about one fixed window and nothing else.
    pub(super) fn read(
        &mut self,
        count: usize,
        times: u64,
        fixed: Option<[u64; 2]>,
    ) -> Result<Result<Counted, Error>, Error> {
        let now_us = self.now_us;
        if self.firsts == 0 {
            match self.words.next() {
                Some(Word::Number(admitted)) => {
                    let words = Words::read(&mut self.words, count - 1)?;
                    return Ok(Ok(Counted { now_us, admitted, later: 0, words }));
                }
                Some(Word::Text(text)) => return Ok(Err(refused(CHARGE.name, text))),
                Some(Word::Mark) => match self.words.next() {
                    Some(Word::Number(firsts)) if firsts > 0 => self.firsts = firsts,
                    _ => return Err(odd()),
                },
                None => return Err(odd()),
            }
        }
        self.firsts -= 1;
        Ok(Ok(Counted::first(fixed.ok_or_else(odd)?, times, now_us)))
    }
}

impl Words {
    #[expect(clippy::indexing_slicing, reason = "it was compared with that")]
    fn read(words: &mut packed::Words<'_>, count: usize) -> Result<Self, Error> {
        let mut next = || match words.next() {
            Some(Word::Number(number)) => Ok(number),
            _ => Err(odd()),
        };
        if count <= FEW {
            let mut few = [0; FEW];
            for word in &mut few[..count] {
                *word = next()?;
            }
            return Ok(Self::Few(few));
        }
        Ok(Self::Many((0..count).map(|_| next()).collect::<Result<_, _>>()?))
    }

    fn all(&self) -> &[u64] {
        match self {
            Self::Few(words) => words,
            Self::Many(words) => words,
        }
    }
}

/// What a counter holds, by what was told of it.
pub(super) fn count(rule: &QuotaRule, words: &[u64]) -> CounterValue {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    match rule {
        QuotaRule::Fixed { .. } => CounterValue::Fixed { spent: word(0), left_ms: word(1) },
        QuotaRule::Sliding { .. } => {
            CounterValue::Sliding { previous: word(0), spent: word(1), left_ms: word(2).max(1) }
        }
        QuotaRule::Gcra { .. } => CounterValue::Gcra { debt: word(0), gross_debt: word(1), debt_id: word(2) },
    }
}

fn odd() -> Error {
    Error::new(ErrorKind::Protocol, CHARGE.name)
}

/// A counter that somebody has set below zero counts as zero.
pub(super) fn number(script: &'static str, word: Option<&Value>) -> Result<u64, Error> {
    match word {
        Some(Value::Int(n)) => Ok(u64::try_from(*n).unwrap_or(0)),
        _ => Err(Error::new(ErrorKind::Protocol, script)),
    }
}

/// What one of several ran into.
pub(super) fn refused(script: &'static str, text: &[u8]) -> Error {
    let error = String::from_utf8_lossy(text);
    crate::throttle::throttled!(error, %error, script, "the store refused a step");
    Error::new(ErrorKind::Protocol, script)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: Option<[u64; 2]> = Some([3, 60_000]);

    fn read(
        reader: &mut Reader<'_>,
        times: u64,
        fixed: Option<[u64; 2]>,
    ) -> Option<(u64, [u64; 2])> {
        let counted = reader.read(3, times, fixed).ok()?.ok()?;
        Some((counted.admitted, [counted.words.all()[0], counted.words.all()[1]]))
    }

    #[test]
    fn charges_that_begin_windows_are_told_by_their_number() {
        // {7, true, 2, 1, 9, 50, true, 1}
        let packed = [0x98, 7, 0xc3, 2, 1, 9, 50, 0xc3, 1];
        let mut reader = Reader::of(&packed).unwrap();
        assert_eq!(read(&mut reader, 1, FIXED), Some((1, [3, 60_000])));
        assert_eq!(read(&mut reader, 4, FIXED), Some((4, [12, 60_000])));
        assert_eq!(read(&mut reader, 1, FIXED), Some((1, [9, 50])));
        assert_eq!(read(&mut reader, 1, FIXED), Some((1, [3, 60_000])));
        assert_eq!(read(&mut reader, 1, FIXED), None, "there is no more");
        let mut reader = Reader::of(&packed).unwrap();
        assert_eq!(read(&mut reader, 1, None), None, "of what is no fixed window it can't be said");
        assert_eq!(read(&mut Reader::of(&[0x93, 7, 0xc3, 0]).unwrap(), 1, FIXED), None);
    }
}
