//! `DirectRunRefusals`: refusals by gates inside a direct run.

use std::sync::Arc;

use parking_lot::Mutex;

use super::gate_request::GateRequest;

/// Mark of a direct run, for the gates further inside. A status such as 429 proves that nothing has
/// run only if one of this crate's gates responded with it: the handler may choose the same status.
///
/// A middleware that rebuilds the request loses the mark. Refusals inside it are then unknown, and
/// the request counts as one that may have run.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirectRunRefusals(Arc<Mutex<RefusalState>>);

#[derive(Debug, Default)]
struct RefusalState {
    /// Status of the last refusal.
    last_status: Option<u16>,
    /// Gates that the request has passed. A later refusal by one of them comes after a retry layer
    /// called it again, and the handler may have run in between.
    passed_gates: Vec<GateId>,
}

/// Identity of a gate and its clones: the address of their shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateId(usize);

impl GateId {
    pub(crate) fn of<T>(shared: &Arc<T>) -> Self {
        Self(Arc::as_ptr(shared).addr())
    }
}

impl DirectRunRefusals {
    /// Returns the run that the request belongs to, if there is one.
    pub(crate) fn from_view<V: GateRequest>(view: &V) -> Option<Self> {
        view.extension()
    }

    /// Marks the request as part of this run, under the lock of `gate`.
    pub(crate) fn attach_to<V: GateRequest>(self, view: &mut V, gate: GateId) {
        self.record_passed(gate);
        view.insert_extension(self);
    }

    /// Notes that `gate` lets the request pass.
    pub(crate) fn record_passed(&self, gate: GateId) {
        let mut state = self.0.lock();
        state.last_status = None;
        if !state.passed_gates.contains(&gate) {
            state.passed_gates.push(gate);
        }
    }

    /// Notes that `gate` refuses the request with `status`.
    pub(crate) fn record_refused(&self, gate: GateId, status: u16) {
        let mut state = self.0.lock();
        state.last_status = Some(status).filter(|_| !state.passed_gates.contains(&gate));
    }

    /// Returns the status of the refusal that kept the run from its handler.
    pub(crate) fn refusal_status(&self) -> Option<u16> {
        self.0.lock().last_status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_counts_until_its_gate_passes_the_request() {
        let (outer, inner) = (Arc::new(1_u8), Arc::new(2_u8));
        let (outer, inner) = (GateId::of(&outer), GateId::of(&inner));
        let run = DirectRunRefusals::default();
        run.record_passed(outer);
        assert_eq!(run.refusal_status(), None);
        run.record_refused(inner, 409);
        assert_eq!(run.refusal_status(), Some(409));
        // A retry layer between the gates calls the inner gate again.
        run.record_refused(inner, 429);
        assert_eq!(run.refusal_status(), Some(429));
        run.record_passed(inner);
        assert_eq!(run.refusal_status(), None, "the handler runs");
    }

    #[test]
    fn refusal_after_a_possible_handler_run_does_not_count() {
        let gate = Arc::new(1_u8);
        let gate = GateId::of(&gate);
        let run = DirectRunRefusals::default();
        run.record_passed(gate);
        run.record_refused(gate, 429);
        assert_eq!(run.refusal_status(), None);
    }
}
