//! `FaultRule`: a call of a script, and the fault at it.

use std::{fmt, sync::Arc};

use tokio::sync::watch;

use crate::wait::with_timeout;

/// Side of a script at which the fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before the server gets the call.
    BeforeCall,
    /// After the server has run it; the reply is lost.
    AfterCall,
}

type RuleAction = Arc<dyn Fn() + Send + Sync>;

/// Fault at a call of a script. The connection of the call is closed in any case.
#[derive(Clone)]
pub struct FaultRule {
    script: String,
    argument: Option<Vec<u8>>,
    argument_prefix: Vec<u8>,
    remaining_skips: usize,
    point: FaultPoint,
    action: Option<RuleAction>,
    is_permanent: bool,
    matched_call: Arc<watch::Sender<Vec<u8>>>,
}

impl FaultRule {
    /// Matches the next call of this script, or one that has it as a step.
    #[must_use]
    pub fn new(script: &str, point: FaultPoint) -> Self {
        let (script, matched_call) = (script.to_owned(), Arc::default());
        Self {
            script,
            argument: None,
            argument_prefix: Vec::new(),
            remaining_skips: 0,
            point,
            action: None,
            is_permanent: false,
            matched_call,
        }
    }

    /// Matches only calls with this argument.
    #[must_use]
    pub fn with_argument(mut self, argument: &str) -> Self {
        self.argument = Some(argument.into());
        self
    }

    /// Matches only calls with an argument that starts with this.
    #[must_use]
    pub fn with_argument_prefix(mut self, prefix: &str) -> Self {
        self.argument_prefix = prefix.into();
        self
    }

    /// Skips this number of matching calls.
    #[must_use]
    pub fn skip_calls(mut self, calls: usize) -> Self {
        self.remaining_skips = calls;
        self
    }

    /// Matches every such call, until the rules are removed.
    #[must_use]
    pub fn always(self) -> Self {
        Self { is_permanent: true, ..self }
    }

    /// Adds an action.
    #[must_use]
    pub fn with_action(mut self, action: impl Fn() + Send + Sync + 'static) -> Self {
        self.action = Some(Arc::new(action));
        self
    }

    pub(super) fn script(&self) -> &str {
        &self.script
    }

    pub(super) fn point(&self) -> FaultPoint {
        self.point
    }

    pub(super) fn subscribe(&self) -> RuleMatch {
        RuleMatch { description: format!("{self:?}"), matched_call: self.matched_call.subscribe() }
    }

    pub(super) fn matches(&mut self, scripts: &[String], arguments: &[&[u8]]) -> bool {
        let has_argument = |argument: &Vec<u8>| arguments.iter().any(|other| other == argument);
        let has_prefix =
            arguments.iter().any(|argument| argument.starts_with(&self.argument_prefix));
        if !scripts.contains(&self.script)
            || !self.argument.as_ref().is_none_or(has_argument)
            || !has_prefix
        {
            return false;
        }
        self.remaining_skips = match self.remaining_skips.checked_sub(1) {
            Some(skip) => skip,
            None => return true,
        };
        false
    }

    pub(super) fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    pub(super) fn trigger(&self, call: &[u8]) {
        if let Some(action) = &self.action {
            action();
        }
        self.matched_call.send_replace(call.to_vec());
    }
}

impl fmt::Debug for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.point, self.script)
    }
}

/// Reports the match of a rule.
#[derive(Debug)]
#[must_use = "a rule that is never met shows nothing"]
pub struct RuleMatch {
    description: String,
    matched_call: watch::Receiver<Vec<u8>>,
}

impl RuleMatch {
    /// Waits for the match, and returns the call as it was sent.
    pub async fn wait_for_match(&mut self) -> Vec<u8> {
        let description = format!("{} to be met", self.description);
        // The sender is dropped with the rule, after its match.
        let _ =
            with_timeout(&description, self.matched_call.wait_for(|call| !call.is_empty())).await;
        assert!(self.has_matched(), "{} was forgotten before it was met", self.description);
        self.matched_call.borrow().clone()
    }

    /// Returns true if the rule has matched.
    #[must_use]
    pub fn has_matched(&self) -> bool {
        !self.matched_call.borrow().is_empty()
    }
}
