//! What all figures of deferral stand on: the server, and everybody who can be started.

use std::{thread, time::Duration};

use crate::{
    args::Pace,
    bench::Bench,
    clock,
    outcome::Outcome,
    process::Process,
    queue::{Kind, Left, Node, Plan, Pushed, left},
};

/// The warm-up of everybody: what Node compiles while it runs takes that long.
const WARM: Duration = Duration::from_secs(1);

/// Until what has run has also been acknowledged.
const SETTLE: Duration = Duration::from_secs(10);

/// Loads that are smaller when it is only to be seen whether all of this runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Jobs that wait before the first is run.
    pub(super) backlog: u64,
    /// Jobs of one figure about moments.
    pub(super) samples: u64,
    /// Line 3: on one resource, and in all over a tenth as many resources.
    pub(super) deep: u64,
    pub(super) wide: u64,
    /// Line 4.
    pub(super) stored: u64,
    pub(super) idle: Duration,
}

const FULL: Sizes = Sizes {
    backlog: 50_000,
    samples: 101,
    deep: 100_000,
    wide: 1_000_000,
    stored: 100_000,
    idle: Duration::from_secs(20),
};

const QUICK: Sizes = Sizes {
    backlog: 3_000,
    samples: 25,
    deep: 10_000,
    wide: 100_000,
    stored: 10_000,
    idle: Duration::from_secs(3),
};

pub(crate) struct Stage {
    pub(crate) bench: Bench,
    pub(super) sizes: Sizes,
    node: Result<Node, String>,
}

impl Stage {
    pub(crate) fn start(pace: Pace, quick: bool) -> Outcome<Self> {
        let (sizes, warm) = if quick { (QUICK, pace.warm) } else { (FULL, WARM) };
        let bench = Bench::start(Pace { warm, ..pace })?;
        let node = Node::prepare();
        if let Err(sentence) = &node {
            println!("NOT RUN: npm's queues: {sentence}");
        }
        Ok(Self { bench, sizes, node })
    }

    pub(super) fn process(&self, plan: &Plan) -> Outcome<Process> {
        match (plan.kind.script(), &self.node) {
            (None, _) => Process::start("queue", plan),
            (Some(script), Ok(node)) => node.start(script, plan),
            (Some(_), Err(sentence)) => Err(sentence.clone().into()),
        }
    }

    /// A process that pushes jobs of a known number, which has let go of them.
    pub(super) fn pushed(&mut self, plan: &Plan) -> Outcome<Pushed> {
        let mut process = self.process(plan)?;
        process.ready()?;
        process.tell(&clock::now().to_string())?;
        let pushed = process.json()?;
        process.tell("end")?;
        match process.line()?.as_str() {
            "ended" => Ok(pushed),
            other => Err(format!("it said `{other}` instead of `ended`").into()),
        }
    }

    /// What is left once nothing waits or runs any more, or after a while.
    pub(super) fn settled(&mut self, kind: Kind) -> Outcome<Left> {
        let give_up = clock::now() + clock::nanos(SETTLE);
        loop {
            let left = left(&mut self.bench.server, kind)?;
            if left.is_settled() || clock::now() > give_up {
                return Ok(left);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Who is left out of a load, and why; another one it may bear.
    pub(super) fn leave_out(&mut self, kind: Kind, why: &str) {
        println!("  NOT RUN: {kind}: {why}");
        if kind.is_ours() {
            self.bench.faults.push(format!("{kind} did not run: {why}"));
        }
    }

    pub(super) fn is_there(&self, kind: Kind) -> bool {
        kind.script().is_none() || self.node.is_ok()
    }
}
