//! A process that pushes jobs, or runs them, through one library.
//!
//! Both say `ready`, and are told the moment at which to begin. One that pushes then tells what it has
//! pushed, and at the next word lets go of what it holds; one that runs says `done` when all have run or nothing
//! more comes, and at the next word, when everything is settled, tells what has run.

use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    Queue, Visitor,
    plan::{Plan, Pushed, Role},
    seen::Seen,
    visit,
};
use crate::{
    clock,
    lifeline::{Orders, say},
    outcome::Outcome,
    stats::{millis, per_mille},
    worker::runtime,
};

/// Longer than any load, so that only a process that hangs is ended by it.
const AT_MOST: Duration = Duration::from_secs(900);

/// How often it is looked whether all have run.
const LOOK: Duration = Duration::from_millis(2);

pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    visit(plan.kind, One { plan })
}

struct One {
    plan: Plan,
}

impl Visitor for One {
    fn meet<Q: Queue>(self) -> Outcome<()> {
        let orders = Orders::listen(self.plan.kind, AT_MOST);
        let runtime = runtime()?;
        match self.plan.role {
            Role::Push => {
                let queue = Arc::new(runtime.block_on(Q::pushes(&self.plan))?);
                let start = orders.start()?;
                let pushed = runtime.block_on(push(&queue, &self.plan, start))?;
                say(&serde_json::to_string(&pushed)?)?;
                orders.next()?;
                runtime.block_on(queue.let_go())?;
                say("ended")?;
            }
            Role::Run => {
                let Plan { jobs, bytes, keep, patience, .. } = self.plan;
                let seen = Arc::new(Seen::new(jobs, bytes, keep));
                let work = runtime.block_on(Q::works(&self.plan, Arc::clone(&seen)))?;
                orders.start()?;
                runtime.block_on(settled(&seen, jobs, patience));
                say("done")?;
                orders.next()?;
                say(&serde_json::to_string(&seen.tell())?)?;
                drop(work);
            }
        }
        // Until the conductor ends it: an orderly end is not what is measured.
        orders.next()?;
        process::exit(0)
    }
}

/// Until all have run, or nothing more comes.
async fn settled(seen: &Seen, jobs: u64, patience: u64) {
    let (mut progress, mut since) = (0, clock::now());
    while progress < jobs && clock::now() < since + patience {
        tokio::time::sleep(LOOK).await;
        let now = seen.progress();
        if now != progress {
            (progress, since) = (now, clock::now());
        }
    }
}

/// What the tasks of a process share.
struct Load<Q> {
    queue: Arc<Q>,
    plan: Plan,
    start: u64,
    end: u64,
    /// The first job that nobody has taken.
    next: AtomicU64,
    told: Mutex<(Pushed, Vec<u64>)>,
}

async fn push<Q: Queue>(queue: &Arc<Q>, plan: &Plan, start: u64) -> Outcome<Pushed> {
    let end = if plan.jobs == 0 { start + plan.window } else { u64::MAX };
    let began = clock::now();
    let load = Arc::new(Load {
        queue: Arc::clone(queue),
        plan: plan.clone(),
        start,
        end,
        next: AtomicU64::new(0),
        told: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..plan.tasks {
        tasks.spawn(Arc::clone(&load).task());
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    let ended = clock::now();
    let (mut pushed, mut took) = load.take();
    took.sort_unstable();
    pushed.p50 = millis(per_mille(&took, 500));
    pushed.p99 = millis(per_mille(&took, 990));
    (pushed.began, pushed.ended) = (began, ended);
    Ok(pushed)
}

impl<Q: Queue> Load<Q> {
    fn take(&self) -> (Pushed, Vec<u64>) {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// In a closed loop, until there are no more jobs or no more time. What it sees it keeps to itself.
    async fn task(self: Arc<Self>) {
        let (mut pushed, mut took, mut asked) = (Pushed::default(), Vec::new(), Vec::new());
        while let Some((job, size)) = self.claim() {
            let from = clock::now();
            let done = match size {
                1 => self.queue.push(job).await,
                _ => self.queue.push_all(job..job + size).await,
            };
            let at = clock::now();
            match done {
                Ok(moment) => {
                    asked.push((job, moment.unwrap_or(from)));
                    pushed.pushed += size;
                    if from >= self.start && at < self.end {
                        pushed.counted += size;
                        took.push(at - from);
                    }
                }
                Err(error) => {
                    pushed.failed += size;
                    pushed.first_failure.get_or_insert_with(|| error.to_string());
                }
            }
            if self.plan.pause > 0 {
                tokio::time::sleep(Duration::from_nanos(self.plan.pause)).await;
            }
        }
        self.tell(pushed, took, &asked);
    }

    fn claim(&self) -> Option<(u64, u64)> {
        if clock::now() >= self.end {
            return None;
        }
        let job = self.next.fetch_add(self.plan.bulk, Relaxed);
        match self.plan.jobs {
            0 => Some((job, self.plan.bulk)),
            jobs => (job < jobs).then(|| (job, self.plan.bulk.min(jobs - job))),
        }
    }

    fn tell(&self, mine: Pushed, took: Vec<u64>, asked: &[(u64, u64)]) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, all_took) = &mut *told;
        all.pushed += mine.pushed;
        all.counted += mine.counted;
        all.failed += mine.failed;
        all.first_failure = all.first_failure.take().or(mine.first_failure);
        all_took.extend(took);
        if self.plan.keep {
            all.asked.resize(usize::try_from(self.plan.jobs).unwrap_or(0), 0);
            for (job, moment) in asked {
                let place = usize::try_from(*job).ok().and_then(|job| all.asked.get_mut(job));
                if let Some(place) = place {
                    *place = *moment;
                }
            }
        }
    }
}
