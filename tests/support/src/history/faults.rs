//! What is done to the processes and to the server of the locks.

use std::{collections::BTreeMap, time::Duration};

use super::{
    clock::{self, MS, ns},
    crew::Crew,
    dice::Dice,
    turn::LEASE,
};
use crate::proxy::{Moment, Proxy, Rule};

/// Times of faults and times without take turns, so that order can be judged in between.
const FAULTY: Duration = Duration::from_millis(3200);
const CALM: Duration = Duration::from_millis(2800);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL, and another process in its place.
    Kill,
    /// SIGSTOP, for less or more than a lease.
    Stop,
    /// Subscribers are cut off.
    CutMessages,
    /// Everybody else is.
    CutCalls,
    ForgetScripts,
    /// The server stands still.
    Freeze,
    /// The server is ended, and comes back with its log.
    Restart,
    /// The cable of a process is pulled for a while.
    Stall,
    /// Its connections are half open.
    HalfOpen,
    /// What it sends and hears comes late.
    Delay,
    /// Its connections end.
    Cut,
    /// The reply to one of its calls is lost after the call has run.
    LoseReply,
}

/// The scripts whose replies are lost.
const SCRIPTS: [&str; 4] = ["acquire", "release", "renew", "calls"];

impl Fault {
    fn draw(dice: &mut Dice, soaks: bool) -> Self {
        match dice.below(if soaks { 36 } else { 20 }) {
            0..=5 => Self::Kill,
            6..=12 => Self::Stop,
            13..=15 => Self::CutMessages,
            16 | 17 => Self::CutCalls,
            18 => Self::ForgetScripts,
            19 => Self::Freeze,
            20 | 21 => Self::Restart,
            22..=24 => Self::Stall,
            25..=27 => Self::HalfOpen,
            28 | 29 => Self::Delay,
            30 | 31 => Self::Cut,
            _ => Self::LoseReply,
        }
    }

    /// How long after it order and speed are not judged.
    fn aftermath(self) -> u64 {
        match self {
            Self::Kill => 2 * ns(LEASE),
            Self::Stop | Self::Freeze => ns(LEASE) + 500 * MS,
            Self::CutMessages | Self::CutCalls | Self::ForgetScripts => 800 * MS,
            // Three calls in a row have to time out until a half-open connection is replaced.
            Self::Restart | Self::Stall | Self::HalfOpen => 2 * ns(LEASE) + 1000 * MS,
            Self::Delay | Self::Cut | Self::LoseReply => ns(LEASE) + 500 * MS,
        }
    }
}

/// Makes faults for so long; what was done, counted.
pub(super) async fn make(crew: &mut Crew, time: Duration, dice: &mut Dice) -> String {
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let end = clock::now() + ns(time);
    while clock::now() < end {
        let until = end.min(clock::now() + ns(FAULTY));
        let mut stopped = BTreeMap::new();
        while clock::now() < until {
            // Dice of its own: whatever comes of one, the next ones are the same for the same seed.
            let mut own = Dice::new(dice.roll());
            // However short it is, somebody is killed.
            let drawn = Fault::draw(&mut own, crew.soaks());
            let fault = if done.is_empty() { Fault::Kill } else { drawn };
            *done.entry(format!("{fault:?}")).or_default() += 1;
            one(crew, fault, &mut own, &mut stopped).await;
            wait(crew, dice.ms(60, 320), &mut stopped).await;
        }
        while let Some(last) = stopped.values().max() {
            let left = Duration::from_nanos(last.saturating_sub(clock::now()) + MS);
            wait(crew, left, &mut stopped).await;
        }
        let calm = CALM.min(Duration::from_nanos(end.saturating_sub(clock::now())));
        tokio::time::sleep(calm).await;
        crew.rest().await;
    }
    let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    done.join(", ")
}

/// `stopped`: when a process that is stopped goes on.
async fn one(crew: &mut Crew, fault: Fault, dice: &mut Dice, stopped: &mut BTreeMap<usize, u64>) {
    let from = clock::now();
    let who = usize::try_from(dice.below(crew.size())).unwrap_or(0);
    match fault {
        // The first one grows old in a soak.
        Fault::Kill if crew.soaks() && who == 0 => {}
        Fault::Kill => {
            stopped.remove(&who);
            crew.replace(who, dice.roll()).await;
        }
        Fault::Stop => {
            if let std::collections::btree_map::Entry::Vacant(entry) = stopped.entry(who) {
                let time = if dice.percent(50) { dice.ms(20, 900) } else { dice.ms(900, 2300) };
                crew.pause(who);
                entry.insert(from + ns(time));
            }
        }
        Fault::CutMessages => crew.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await,
        Fault::CutCalls => crew.command(&["CLIENT", "KILL", "TYPE", "normal"]).await,
        Fault::ForgetScripts => crew.command(&["SCRIPT", "FLUSH"]).await,
        Fault::Freeze => crew.freeze(dice.ms(50, 300)).await,
        Fault::Restart => crew.restart(dice.ms(0, 400)).await,
        Fault::Stall | Fault::HalfOpen | Fault::Delay | Fault::Cut | Fault::LoseReply => {
            if let Some(proxy) = crew.proxy(who) {
                cable(proxy, fault, dice).await;
            }
        }
    }
    let until = stopped.get(&who).copied().unwrap_or(0).max(clock::now());
    crew.trouble(from, until + fault.aftermath());
}

/// Done to the cable of one process.
async fn cable(proxy: &Proxy, fault: Fault, dice: &mut Dice) {
    match fault {
        Fault::Stall => {
            proxy.stall(true);
            tokio::time::sleep(dice.ms(100, 2300)).await;
            proxy.stall(false);
        }
        Fault::Delay => {
            proxy.delay(dice.ms(5, 120));
            tokio::time::sleep(dice.ms(100, 900)).await;
            proxy.delay(Duration::ZERO);
        }
        Fault::HalfOpen => proxy.half_open(),
        Fault::Cut => proxy.cut(),
        _ => {
            let script = SCRIPTS[usize::try_from(dice.below(4)).unwrap_or(0)];
            let _struck = proxy.strike(Rule::new(script, Moment::After));
        }
    }
}

/// Those whose time has come go on meanwhile.
async fn wait(crew: &mut Crew, time: Duration, stopped: &mut BTreeMap<usize, u64>) {
    let until = clock::now() + ns(time);
    loop {
        let now = clock::now();
        stopped.retain(|who, at| {
            if *at <= now {
                crew.resume(*who);
            }
            *at > now
        });
        if now >= until {
            return;
        }
        let next = stopped.values().copied().fold(until, u64::min);
        tokio::time::sleep(Duration::from_nanos(next.saturating_sub(now))).await;
    }
}
