//! What is to happen at which call.

use std::{fmt, sync::Arc};

use tokio::sync::watch;

use crate::wait::within;

/// On which side of a script something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server does not get the call.
    Before,
    /// The server has run it, and nobody gets the reply.
    After,
}

type Act = Arc<dyn Fn() + Send + Sync>;

/// A call, by its script, and what happens at it. The connection of the call is closed in any case.
#[derive(Clone)]
pub struct Rule {
    script: String,
    word: Option<Vec<u8>>,
    start: Vec<u8>,
    skip: usize,
    moment: Moment,
    act: Option<Act>,
    stays: bool,
    told: Arc<watch::Sender<Vec<u8>>>,
}

impl Rule {
    /// At the next call of this script, or one that has it as a step.
    #[must_use]
    pub fn new(script: &str, moment: Moment) -> Self {
        let (script, told) = (script.to_owned(), Arc::default());
        Self {
            script,
            word: None,
            start: Vec::new(),
            skip: 0,
            moment,
            act: None,
            stays: false,
            told,
        }
    }

    /// Only a call that has this among its arguments.
    #[must_use]
    pub fn with(mut self, word: &str) -> Self {
        self.word = Some(word.into());
        self
    }

    /// Only a call with an argument that begins with this.
    #[must_use]
    pub fn with_start(mut self, word: &str) -> Self {
        self.start = word.into();
        self
    }

    /// Not the first calls, of this number, that it would meet.
    #[must_use]
    pub fn skip(mut self, calls: usize) -> Self {
        self.skip = calls;
        self
    }

    /// At every such call, until rules are forgotten.
    #[must_use]
    pub fn always(self) -> Self {
        Self { stays: true, ..self }
    }

    /// Has this done as well.
    #[must_use]
    pub fn act(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.act = Some(Arc::new(act));
        self
    }

    pub(super) fn script(&self) -> &str {
        &self.script
    }

    pub(super) fn moment(&self) -> Moment {
        self.moment
    }

    pub(super) fn struck(&self) -> Struck {
        Struck { what: format!("{self:?}"), told: self.told.subscribe() }
    }

    pub(super) fn meets(&mut self, scripts: &[String], words: &[&[u8]]) -> bool {
        let has = |word: &Vec<u8>| words.iter().any(|other| other == word);
        let begins = words.iter().any(|word| word.starts_with(&self.start));
        if !scripts.contains(&self.script) || !self.word.as_ref().is_none_or(has) || !begins {
            return false;
        }
        self.skip = match self.skip.checked_sub(1) {
            Some(skip) => skip,
            None => return true,
        };
        false
    }

    pub(super) fn stays(&self) -> bool {
        self.stays
    }

    pub(super) fn happen(&self, call: &[u8]) {
        if let Some(act) = &self.act {
            act();
        }
        self.told.send_replace(call.to_vec());
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.moment, self.script)
    }
}

/// Tells when a rule has been met.
#[derive(Debug)]
#[must_use = "a rule that is never met shows nothing"]
pub struct Struck {
    what: String,
    told: watch::Receiver<Vec<u8>>,
}

impl Struck {
    /// Waits until it has; the call, as it was on the wire.
    pub async fn happened(&mut self) -> Vec<u8> {
        let what = format!("{} to be met", self.what);
        // The sender goes with the rule, which has been met then.
        let _ = within(&what, self.told.wait_for(|call| !call.is_empty())).await;
        assert!(self.has_happened(), "{} was forgotten before it was met", self.what);
        self.told.borrow().clone()
    }

    /// Whether it has.
    #[must_use]
    pub fn has_happened(&self) -> bool {
        !self.told.borrow().is_empty()
    }
}
