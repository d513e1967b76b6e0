//! How each fault is made.

use std::{sync::Arc, time::Duration};

use super::{
    AFTERMATH, Domain, Fault, Fleet,
    clock::{self, ns},
    dice::Dice,
    process::resume_now,
};
use crate::{
    checker::deferred::ProcessDisturbance,
    proxy::{Moment, Rule},
};

/// How long half-open connections stay: nodes give a call five seconds, so most are left by then.
const HALF_OPEN: Duration = Duration::from_secs(12);

impl<D: Domain> Fleet<D> {
    /// Makes a fault and notes how long its traces are not judged.
    pub(super) async fn strike(&mut self, fault: Fault, dice: &mut Dice) {
        let mut who = dice.index(self.size());
        if self.soaks() && fault.ends_a_process() && who < D::RULES.old.len() {
            // The first ones grow old.
            who += D::RULES.old.len();
        }
        if self.notes.lock().killed.contains_key(&self.life(who)) {
            self.replace(who).await;
        }
        let from = clock::now();
        if fault.strikes_all() {
            self.strike_server(fault, dice).await;
        } else {
            self.strike_process(who, fault, dice).await;
        }
        // A lost reply is noted when a call meets its rule.
        if let Some(aftermath) = D::aftermath(fault).filter(|_| fault != Fault::LoseReply) {
            let to = clock::now().max(self.seats[who].stopped) + ns(aftermath);
            self.trouble((!fault.strikes_all()).then_some(who), from, to);
        }
    }

    async fn strike_server(&mut self, fault: Fault, dice: &mut Dice) {
        match fault {
            Fault::CutMessages => drop(self.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await),
            Fault::CutCalls => drop(self.command(&["CLIENT", "KILL", "TYPE", "normal"]).await),
            Fault::Freeze => {
                self.server.pause();
                tokio::time::sleep(dice.ms(50, 400)).await;
                self.server.resume();
            }
            Fault::Restart => {
                self.server.kill();
                tokio::time::sleep(dice.ms(0, D::RULES.away)).await;
                self.server.restart().await;
            }
            _ => drop(self.command(&["SCRIPT", "FLUSH"]).await),
        }
    }

    async fn strike_process(&mut self, who: usize, fault: Fault, dice: &mut Dice) {
        match fault {
            Fault::Kill => self.replace(who).await,
            Fault::KillAtCall => self.kill_at_call(who, dice).await,
            Fault::Drain => {
                self.terminate(who);
                self.ended(who).await;
                self.replace(who).await;
            }
            Fault::Stop => self.stop(who, dice).await,
            _ => self.strike_connections(who, fault, dice).await,
        }
    }

    async fn strike_connections(&self, who: usize, fault: Fault, dice: &mut Dice) {
        let proxy = self.proxy(who);
        match fault {
            Fault::LoseReply => {
                let rule = rule::<D>(dice);
                // A call may meet it long after this, or never.
                drop(proxy.strike(match D::aftermath(fault) {
                    Some(aftermath) => rule.act(self.troubler(who, aftermath)),
                    None => rule,
                }));
            }
            Fault::Deafen => {
                proxy.lose_messages(true);
                tokio::time::sleep(dice.ms(200, 2000)).await;
                proxy.lose_messages(false);
            }
            Fault::Stall => {
                proxy.stall(true);
                tokio::time::sleep(dice.ms(100, 2300)).await;
                proxy.stall(false);
            }
            Fault::Delay => {
                proxy.delay(dice.ms(5, 120));
                tokio::time::sleep(dice.ms(100, 1500)).await;
                proxy.delay(Duration::ZERO);
            }
            Fault::HalfOpen => D::half_open(self, proxy, who),
            _ => proxy.cut(),
        }
    }

    async fn kill_at_call(&mut self, who: usize, dice: &mut Dice) {
        let proxy = self.proxy(who).clone();
        let mut struck = proxy.strike(rule::<D>(dice).act(self.killer(who)));
        // Calls are made all the time. If none meets the rule, the next fault finds the process alive.
        let _ = tokio::time::timeout(Duration::from_secs(2), struck.happened()).await;
        proxy.forget_rules();
        if struck.has_happened() || !self.lives(who) {
            self.replace(who).await;
        }
    }

    async fn stop(&mut self, who: usize, dice: &mut Dice) {
        let lease = u64::try_from(D::RULES.lease.as_millis()).unwrap_or(0);
        let short = dice.percent(50);
        let time = if short { dice.ms(20, lease) } else { dice.ms(lease, lease + 1500) };
        let (now, seat) = (clock::now(), &mut self.seats[who]);
        if seat.stopped > now {
            return;
        }
        seat.process.pause();
        seat.stopped = now + ns(time);
        let pid = seat.process.pid();
        let resumed = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            // Not of a process that was replaced meanwhile: that one needs no signal.
            pid.into_iter().for_each(resume_now);
        });
        if !D::RULES.overlaps {
            let _ = resumed.await;
        }
    }

    /// Waits until no process is stopped.
    pub(super) async fn all_go_on(&self) {
        let last = self.seats.iter().map(|seat| seat.stopped).max().unwrap_or(0);
        if let Some(left) = last.checked_sub(clock::now()) {
            tokio::time::sleep(Duration::from_nanos(left + 10 * clock::MS)).await;
        }
    }
}

fn rule<D: Domain>(dice: &mut Dice) -> Rule {
    let script = *dice.pick(D::RULES.scripts);
    let moment = if dice.percent(50) { Moment::Before } else { Moment::After };
    Rule::new(script, moment).skip(dice.index(4))
}

impl<D> Fleet<D> {
    /// Makes its connections half open, which is trouble for as long as the process uses them: each is left after three
    /// unanswered calls, so one that is seldom used is left late. Those that are left over end after `HALF_OPEN`.
    pub fn half_open(&self, node: usize) {
        let proxy = self.proxy(node).clone();
        let (life, from) = (Some(self.life(node)), clock::now());
        let at = {
            let troubles = &mut self.notes.lock().troubles;
            troubles.push(ProcessDisturbance {
                incarnation: life,
                from,
                to: from + ns(HALF_OPEN + AFTERMATH),
            });
            troubles.len() - 1
        };
        proxy.half_open();
        let notes = Arc::clone(&self.notes);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(HALF_OPEN, proxy.left()).await;
            proxy.end_half_open();
            // None, if all was judged meanwhile.
            if let Some(trouble) = notes.lock().troubles.get_mut(at) {
                trouble.to = clock::now() + ns(AFTERMATH);
            }
        });
    }
}
