//! The steps of a visit in the store: the claim of a line's first job, and what settles its run.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    callback,
    visit::{Next, Visit},
    worker::DeferWorker,
};
use crate::store::{
    Attempt, Claim, Claimed, Hold, JobId, Mode, NextRun, Run, Settle, SettledRun, Store, Terms,
    Token, Verdict,
};

/// Heads looked at in one visit; dead ones are passed, the rest is for the next visit.
const HEADS: usize = 8;

/// Pause between two claims of which the first was not answered.
const PAUSE: Duration = Duration::from_millis(50);

/// A run that has begun, and its lock.
pub(super) struct Started {
    pub(super) run: Run,
    pub(super) hold: Hold,
}

impl Visit {
    /// `Err`: there is nothing to run now.
    pub(super) async fn claim_first(&self, mut head: Option<JobId>) -> Result<Started, Next> {
        for _ in 0..HEADS {
            // None is known: the claim says which it is, or that there is none, and then mends the line.
            let id = head.take().unwrap_or_else(|| JobId::new(&self.key));
            let mut attempt = Attempt::claim(&self.worker.store, &self.key, &id);
            let Some(claimed) = self.send_claim(&mut attempt, &id).await else {
                return Err(Next::After(Duration::from_millis(200)));
            };
            if let Claimed::Claimed(run) = claimed {
                let hold = attempt.granted(run.fence, self.terms(&run.id));
                return Ok(Started { run, hold });
            }
            attempt.refused();
            match claimed {
                Claimed::Busy(wait) | Claimed::Later(wait) => return Err(Next::After(wait)),
                Claimed::Empty => return Err(Next::WhenTold),
                Claimed::Dead(id) => {
                    tracing::error!(job = ?id, "deferred request has ended: crashed, lost or too late");
                    callback::push_of_dead(&self.worker.store, &id).await;
                }
                Claimed::Moved(first) => head = Some(first),
                Claimed::Claimed(_) => {}
            }
        }
        Err(Next::After(Duration::ZERO))
    }

    fn terms(&self, id: &JobId) -> Terms {
        let DeferWorker { lease, max_run, .. } = &*self.worker;
        let (job, mode) = (Some(id.clone()), Mode::Exclusive);
        Terms { lease: *lease, renew: true, max_hold: *max_run, job, mode }
    }

    /// The claim, with the same token as long as a claim that got through unanswered would be sure to
    /// hold: given up too soon, it would leave a job that looks as if its worker had died.
    async fn send_claim(&self, attempt: &mut Attempt, id: &JobId) -> Option<Claimed> {
        let DeferWorker { store, lease, rules, .. } = &*self.worker;
        let mut give_up = None;
        loop {
            let call = Claim {
                key: self.key.clone(),
                id: id.clone(),
                me: attempt.me.clone(),
                lease: *lease,
                retention: rules.keep_dead,
            };
            let error = match attempt.send(*lease, store.backend().claim(call)).await {
                Ok(claimed) => return Some(claimed),
                Err(error) => error,
            };
            tracing::warn!(job = ?id, %error, "claim failed");
            if error.may_have_run() {
                give_up.get_or_insert(attempt.sure_until());
            }
            match give_up {
                Some(give_up) if Instant::now() < give_up => tokio::time::sleep(PAUSE).await,
                _ => return None,
            }
        }
    }

    /// Tries until the store has answered or the hold is no longer sure. `None`: the run was lost;
    /// otherwise the verdict stands, and the next run has begun if it goes on and there is one.
    pub(super) async fn settle(
        &self,
        started: Started,
        verdict: Verdict,
        goes_on: bool,
    ) -> Option<Option<Started>> {
        let DeferWorker { store, lease, rules, .. } = &*self.worker;
        let Started { run, mut hold } = started;
        let next = goes_on.then(|| NextRun {
            me: Token::new(store.node()),
            lease: *lease,
            retention: rules.keep_dead,
        });
        let (key, me) = (self.key.clone(), hold.facts().lease.me.clone());
        let call = Settle { key, id: run.id, me, verdict, next };
        let mut unsettled = Unsettled { store, call: Some(call), until: Instant::now() + *lease };
        // Of the first call: it may be the one that got through.
        let sent = Instant::now();
        let settled = unsettled.send(&hold).await?;
        let call = unsettled.call.take();
        match settled {
            SettledRun::Lost => None,
            SettledRun::Stands(next) => {
                hold.forget();
                let begin = |(run, token): (Run, NextRun)| {
                    let attempt = Attempt::along(store, &self.key, token.me, sent, *lease);
                    let hold = attempt.granted(run.fence, self.terms(&run.id));
                    Started { run, hold }
                };
                Some(next.zip(call.and_then(|call| call.next)).map(begin))
            }
        }
    }
}

/// A settlement that may have claimed the next job, and that nobody has heard about. Dropped, it is sent
/// again, and the job it has claimed is put back, uncharged: it has not been started.
struct Unsettled<'a> {
    store: &'a Store,
    call: Option<Settle>,
    /// When what it may have claimed ends by itself, if nothing more is sent.
    until: Instant,
}

impl Unsettled<'_> {
    /// `None`: there was no answer while the hold was sure.
    async fn send(&mut self, hold: &Hold) -> Option<SettledRun> {
        let facts = hold.facts();
        let mut pause = Duration::from_millis(10);
        loop {
            let call = self.call.clone()?;
            if let Some(next) = &call.next {
                self.until = Instant::now() + next.lease;
            }
            let id = call.id.clone();
            match self.store.backend().settle(call).await {
                Ok(settled) => return Some(settled),
                Err(error) => tracing::warn!(job = ?id, %error, "settling failed"),
            }
            if facts.valid_until() <= Instant::now() + pause || facts.loss().is_some() {
                return None;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take().filter(|call| call.next.is_some()) {
            self.store.spawn(put_back(self.store.clone(), call, self.until));
        }
    }
}

async fn put_back(store: Store, call: Settle, until: Instant) {
    while Instant::now() < until {
        match store.backend().settle(call.clone()).await {
            Ok(SettledRun::Stands(Some(run))) => {
                let Some(next) = &call.next else { return };
                let delay = Duration::from_millis(1);
                let back = Settle {
                    key: call.key.clone(),
                    id: run.id,
                    me: next.me.clone(),
                    verdict: Verdict::Back { delay, reason: "dropped" },
                    next: None,
                };
                if store.backend().settle(back).await.is_ok() {
                    return;
                }
            }
            Ok(_) => return,
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
