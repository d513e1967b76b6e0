//! What `charge.lua` and `settle_charge.lua` answer about counters.

use std::sync::Arc;

use redis::Value;

use super::{
    packed::{self, Word},
    script::CHARGE,
};
use crate::{
    error::{Error, ErrorKind},
    store::rate::{Count, Item, Rule, States},
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
pub(super) fn shape(item: &Item) -> usize {
    let spent = match item.rule {
        Rule::Fixed { .. } | Rule::Gcra { .. } => 2,
        Rule::Sliding { .. } => 3,
    };
    spent + usize::from(item.penalty.is_some())
}

impl Counted {
    /// One step's part of the list; an error inside is the step's own, one outside is that of all.
    pub(super) fn read(
        words: &mut packed::Words<'_>,
        count: usize,
        now_us: u64,
    ) -> Result<Result<Self, Error>, Error> {
        let admitted = match words.next() {
            Some(Word::Number(admitted)) => admitted,
            Some(Word::Text(text)) => return Ok(Err(refused(CHARGE.name, text))),
            None => return Err(odd()),
        };
        let words = Words::read(words, count - 1)?;
        Ok(Ok(Self { now_us, admitted, later: 0, words }))
    }

    /// What each of its counters says.
    pub(super) fn states(&self, items: &[Item]) -> States {
        let mut words = self.words.all();
        let state = |item: &Item| {
            let (own, rest) = words.split_at_checked(shape(item)).unwrap_or((&[], &[]));
            words = rest;
            let blocked = if item.penalty.is_some() { own.last().copied() } else { None };
            let units = self.later.saturating_mul(item.cost);
            let count = count(&item.rule, own).earlier(&item.rule, units);
            item.state(count, self.now_us, blocked.unwrap_or(0))
        };
        items.iter().map(state).collect()
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
pub(super) fn count(rule: &Rule, words: &[u64]) -> Count {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    match rule {
        Rule::Fixed { .. } => Count::Fixed { spent: word(0), left: word(1) },
        Rule::Sliding { .. } => {
            Count::Sliding { before: word(0), spent: word(1), left: word(2).max(1) }
        }
        Rule::Gcra { .. } => Count::Gcra { debt: word(0), gross: word(1) },
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
    tracing::error!(%error, script, "the store refused a step");
    Error::new(ErrorKind::Protocol, script)
}
