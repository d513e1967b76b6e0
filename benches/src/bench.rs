//! The conductor: one server, and one window at a time.

use std::time::Duration;

use crate::{
    args::Pace,
    clock,
    contestant::{Contender, Load, Who},
    cores,
    outcome::Outcome,
    plan::{Keys, Plan, Trial},
    process::Process,
    quiet,
    record::{Event, Head},
    redis::{Counts, Server},
    sent::{Monitor, Senders},
    summary::{Seen, Summary},
};

/// Between telling the processes and the warm-up: all of them have heard it.
const HEARD: Duration = Duration::from_millis(5);

pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) pace: Pace,
    /// What must not happen at all, and did: calls of ours that failed, two holders at once.
    pub(crate) faults: Vec<String>,
    /// Nobody else was seen to use the cores.
    pub(crate) quiet: bool,
}

/// The two ends of a window, as the server counted.
pub(crate) struct Counted {
    pub(crate) before: Counts,
    pub(crate) after: Counts,
}

impl Bench {
    pub(crate) fn start(pace: Pace) -> Outcome<Self> {
        let cores = cores::keep_to_two()?;
        let mut server = Server::start()?;
        let (version, port) = (server.version()?, server.port());
        let Pace { rounds, warm, window } = pace;
        println!(
            "redis-server {version} on 127.0.0.1:{port}; everything on {cores} cores; {rounds} rounds of \
             {window:?} after {warm:?} of warm-up"
        );
        let quiet = quiet::check();
        Ok(Self { server, pace, faults: Vec::new(), quiet })
    }

    /// One window of one contender, on an empty server, in fresh processes.
    pub(crate) fn window(
        &mut self,
        contender: Contender,
        trial: &Trial,
        senders: &Senders,
    ) -> Outcome<Summary> {
        self.server.flush()?;
        let window = self.pace.window;
        let port = self.server.port();
        let mut processes = Vec::new();
        for process in 0..trial.processes {
            let plan = Plan { contender, trial: *trial, process, port, window };
            processes.push(Process::start("worker", &plan)?);
        }
        let counted = self.count(&mut processes)?;
        let seen = processes.iter_mut().map(see).collect::<Outcome<Vec<_>>>()?;
        let calls = senders.count(&counted.before, &counted.after);
        Ok(Summary::of(trial, seen, calls, window.as_secs_f64()))
    }

    /// Lets prepared processes go, and counts what the server runs between the ends of their window.
    pub(crate) fn count(&mut self, processes: &mut [Process]) -> Outcome<Counted> {
        processes.iter_mut().try_for_each(Process::ready)?;
        let start = clock::now() + clock::nanos(HEARD + self.pace.warm);
        processes.iter_mut().try_for_each(|process| process.tell(&start.to_string()))?;
        clock::sleep_until(start);
        let before = self.server.counts()?;
        clock::sleep_until(start + clock::nanos(self.pace.window));
        let after = self.server.counts()?;
        Ok(Counted { before, after })
    }

    /// Does something briefly under `MONITOR`, to learn who sends which command.
    pub(crate) fn observe(
        &mut self,
        what: impl FnOnce(&mut Self) -> Outcome<()>,
    ) -> Outcome<Senders> {
        let pace = self.pace;
        self.pace.window = Duration::from_millis(200);
        let monitor = Monitor::start(self.server.port())?;
        let done = what(self);
        let senders = monitor.stop()?;
        self.pace = pace;
        done.map(|()| senders)
    }

    /// A window of nothing but round trips.
    pub(crate) fn ping(&mut self) -> Outcome<Summary> {
        let trial = Trial { processes: 1, tasks: 1, keys: Keys::Own(1), work: 0 };
        let ping = Contender::best(Who::Ping, Load::Uncontended);
        self.window(ping, &trial, &Senders::default())
    }

    pub(crate) fn senders(&mut self, contender: Contender, trial: &Trial) -> Outcome<Senders> {
        self.observe(|bench| {
            bench.window(contender, trial, &Senders::default())?;
            Ok(())
        })
    }
}

fn see(process: &mut Process) -> Outcome<Seen> {
    let head: Head = process.json()?;
    let events = Event::read_all(&process.bytes(head.events * Event::SIZE)?);
    Ok(Seen { head, events })
}
