//! Injection of each fault into a process, its connections or the server.

use std::{sync::Arc, time::Duration};

use super::{
    FleetDomain, InjectedFault, LEASE_GRACE_PERIOD, ProcessFleet,
    child_process::resume_pid,
    clock::{self, duration_ns},
    seeded_rng::SeededRng,
};
use crate::{
    checker::deferred::ProcessDisturbance,
    proxy::{FaultPoint, FaultRule},
};

/// How long half-open connections stay: nodes give a call five seconds, so most are left by then.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(12);

impl<D: FleetDomain> ProcessFleet<D> {
    /// Makes a fault and notes how long its traces are not judged.
    pub(super) async fn inject_fault(&mut self, fault: InjectedFault, dice: &mut SeededRng) {
        let mut who = dice.random_index(self.process_count());
        if self.is_soak() && fault.ends_process() && who < D::RULES.permanent_processes.len() {
            // The first ones grow old.
            who += D::RULES.permanent_processes.len();
        }
        if self.disturbances.lock().killed_at.contains_key(&self.incarnation(who)) {
            self.replace_process(who).await;
        }
        let from = clock::now_ns();
        if fault.affects_all_processes() {
            self.inject_server_fault(fault, dice).await;
        } else {
            self.inject_process_fault(who, fault, dice).await;
        }
        // A lost reply is noted when a call meets its rule.
        if let Some(aftermath) =
            D::grace_period(fault).filter(|_| fault != InjectedFault::LoseReply)
        {
            let to = clock::now_ns().max(self.members[who].stopped_until) + duration_ns(aftermath);
            self.record_disturbance((!fault.affects_all_processes()).then_some(who), from, to);
        }
    }

    async fn inject_server_fault(&mut self, fault: InjectedFault, dice: &mut SeededRng) {
        match fault {
            InjectedFault::CutMessages => {
                drop(self.send_server_command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await);
            }
            InjectedFault::CutCalls => {
                drop(self.send_server_command(&["CLIENT", "KILL", "TYPE", "normal"]).await);
            }
            InjectedFault::Freeze => {
                self.server.pause();
                tokio::time::sleep(dice.duration_between_ms(50, 400)).await;
                self.server.resume();
            }
            InjectedFault::Restart => {
                self.server.kill();
                tokio::time::sleep(dice.duration_between_ms(0, D::RULES.max_downtime_ms)).await;
                self.server.restart().await;
            }
            _ => drop(self.send_server_command(&["SCRIPT", "FLUSH"]).await),
        }
    }

    async fn inject_process_fault(
        &mut self,
        who: usize,
        fault: InjectedFault,
        dice: &mut SeededRng,
    ) {
        match fault {
            InjectedFault::Kill => self.replace_process(who).await,
            InjectedFault::KillAtCall => self.kill_at_call(who, dice).await,
            InjectedFault::Drain => {
                self.terminate(who);
                self.wait_for_exit(who).await;
                self.replace_process(who).await;
            }
            InjectedFault::Stop => self.pause_temporarily(who, dice).await,
            _ => self.inject_connection_fault(who, fault, dice).await,
        }
    }

    async fn inject_connection_fault(
        &self,
        who: usize,
        fault: InjectedFault,
        dice: &mut SeededRng,
    ) {
        let proxy = self.proxy(who);
        match fault {
            InjectedFault::LoseReply => {
                let rule = random_fault_rule::<D>(dice);
                // A call may meet it long after this, or never.
                drop(proxy.add_rule(match D::grace_period(fault) {
                    Some(aftermath) => rule.with_action(self.disturbance_callback(who, aftermath)),
                    None => rule,
                }));
            }
            InjectedFault::LoseMessages => {
                proxy.set_drop_messages(true);
                tokio::time::sleep(dice.duration_between_ms(200, 2000)).await;
                proxy.set_drop_messages(false);
            }
            InjectedFault::Stall => {
                proxy.set_stalled(true);
                tokio::time::sleep(dice.duration_between_ms(100, 2300)).await;
                proxy.set_stalled(false);
            }
            InjectedFault::Delay => {
                proxy.set_delay(dice.duration_between_ms(5, 120));
                tokio::time::sleep(dice.duration_between_ms(100, 1500)).await;
                proxy.set_delay(Duration::ZERO);
            }
            InjectedFault::HalfOpen => D::make_half_open(self, proxy, who),
            _ => proxy.cut_connections(),
        }
    }

    async fn kill_at_call(&mut self, who: usize, dice: &mut SeededRng) {
        let proxy = self.proxy(who).clone();
        let mut struck =
            proxy.add_rule(random_fault_rule::<D>(dice).with_action(self.kill_callback(who)));
        // Calls are made all the time. If none meets the rule, the next fault finds the process alive.
        let _ = tokio::time::timeout(Duration::from_secs(2), struck.wait_for_match()).await;
        proxy.clear_rules();
        if struck.has_matched() || !self.is_running(who) {
            self.replace_process(who).await;
        }
    }

    async fn pause_temporarily(&mut self, who: usize, dice: &mut SeededRng) {
        let lease = u64::try_from(D::RULES.lease.as_millis()).unwrap_or(0);
        let short = dice.chance_percent(50);
        let time = if short {
            dice.duration_between_ms(20, lease)
        } else {
            dice.duration_between_ms(lease, lease + 1500)
        };
        let (now, seat) = (clock::now_ns(), &mut self.members[who]);
        if seat.stopped_until > now {
            return;
        }
        seat.process.pause();
        seat.stopped_until = now + duration_ns(time);
        let pid = seat.process.pid();
        let resumed = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            // Not of a process that was replaced meanwhile: that one needs no signal.
            pid.into_iter().for_each(resume_pid);
        });
        if !D::RULES.stops_overlap {
            let _ = resumed.await;
        }
    }

    /// Waits until no process is stopped.
    pub(super) async fn wait_until_all_resumed(&self) {
        let last = self.members.iter().map(|seat| seat.stopped_until).max().unwrap_or(0);
        if let Some(left) = last.checked_sub(clock::now_ns()) {
            tokio::time::sleep(Duration::from_nanos(left + 10 * clock::NS_PER_MS)).await;
        }
    }
}

fn random_fault_rule<D: FleetDomain>(dice: &mut SeededRng) -> FaultRule {
    let script = *dice.pick(D::RULES.target_scripts);
    let moment =
        if dice.chance_percent(50) { FaultPoint::BeforeCall } else { FaultPoint::AfterCall };
    FaultRule::new(script, moment).skip_calls(dice.random_index(4))
}

impl<D> ProcessFleet<D> {
    /// Makes its connections half open, which is trouble for as long as the process uses them: each is left after three
    /// unanswered calls, so one that is seldom used is left late. Those that are left over end after `HALF_OPEN_TIMEOUT`.
    pub fn make_half_open(&self, node: usize) {
        let proxy = self.proxy(node).clone();
        let (life, from) = (Some(self.incarnation(node)), clock::now_ns());
        let at = {
            let troubles = &mut self.disturbances.lock().disturbances;
            troubles.push(ProcessDisturbance {
                incarnation: life,
                from,
                to: from + duration_ns(HALF_OPEN_TIMEOUT + LEASE_GRACE_PERIOD),
            });
            troubles.len() - 1
        };
        proxy.half_open_connections();
        let notes = Arc::clone(&self.disturbances);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(HALF_OPEN_TIMEOUT, proxy.wait_until_half_open_abandoned())
                .await;
            proxy.close_half_open();
            // None, if all was judged meanwhile.
            if let Some(trouble) = notes.lock().disturbances.get_mut(at) {
                trouble.to = clock::now_ns() + duration_ns(LEASE_GRACE_PERIOD);
            }
        });
    }
}
