//! Schedule of the random faults, and the measurements of a soak.

use std::time::{Duration, Instant};

use super::{FleetDomain, HistoryPlan, InjectedFault, ProcessFleet, clock, seeded_rng::SeededRng};
use crate::{
    checker::{Guarantee, Violation},
    proxy::FaultProxy,
    resource_usage::ResourceUsage,
    soak_measurements::{self, MeasuredResource},
    store_inspection,
};

/// Longest extension of a run with insufficient coverage.
const MAX_EXTRA_TIME: Duration = Duration::from_secs(20);

impl<D: FleetDomain> ProcessFleet<D> {
    /// Injects faults until the final calm period. Returns the end of the last fault, ns.
    pub(super) async fn run_fault_schedule(
        &mut self,
        plan: &HistoryPlan,
        started: Instant,
        rng: &mut SeededRng,
    ) -> u64 {
        let final_calm = D::RULES.final_calm;
        let mut deadline = started + plan.duration.saturating_sub(final_calm);
        loop {
            self.inject_faults_until(deadline, rng).await;
            let last_fault_end = clock::now_ns();
            tokio::time::sleep(final_calm).await;
            if D::has_sufficient_coverage(self)
                || started.elapsed() > plan.duration + MAX_EXTRA_TIME
            {
                return last_fault_end;
            }
            deadline = Instant::now() + final_calm;
        }
    }

    async fn inject_faults_until(&mut self, deadline: Instant, rng: &mut SeededRng) {
        let (rules, mut cycle_start) = (D::RULES, Instant::now());
        while Instant::now() < deadline {
            // Each fault has its own random numbers, so that with the same seed the next faults are
            // the same.
            let mut fault_rng = SeededRng::new(rng.next_u64());
            let soak_weights = if self.is_soak() { rules.soak_fault_weights } else { &[] };
            let random_fault =
                InjectedFault::draw_weighted(&mut fault_rng, &[rules.fault_weights, soak_weights]);
            // Every run kills a process, however short it is.
            let fault =
                if self.fault_counts.is_empty() { InjectedFault::Kill } else { random_fault };
            *self.fault_counts.entry(fault).or_default() += 1;
            D::on_fault(self, &mut fault_rng);
            self.inject_fault(fault, &mut fault_rng).await;
            tokio::time::sleep(fault_rng.duration_between_ms(rules.pause_ms.0, rules.pause_ms.1))
                .await;
            let calm_phase =
                rules.fault_cycle.filter(|(fault_time, _)| cycle_start.elapsed() > *fault_time);
            if let Some((_, calm_time)) = calm_phase {
                self.wait_until_all_resumed().await;
                let remaining = deadline.saturating_duration_since(Instant::now());
                tokio::time::sleep(calm_time.min(remaining)).await;
                cycle_start = Instant::now();
            }
            let is_measurement_due = self
                .soak_interval
                .is_some_and(|interval| self.last_measured_at.elapsed() > interval);
            if is_measurement_due && (calm_phase.is_some() || !rules.measures_in_calm) {
                self.wait_until_all_resumed().await;
                self.measure_at_rest().await;
                cycle_start = Instant::now();
            }
        }
        self.wait_until_all_resumed().await;
        self.proxies().for_each(FaultProxy::clear_rules);
    }

    /// Returns the number of injected faults of each kind.
    pub(super) fn fault_summary(&self) -> String {
        let counts = self.fault_counts.iter().map(|(fault, count)| format!("{count} {fault:?}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// Pauses all work, and measures the permanent processes, the server and the store.
    async fn measure_at_rest(&mut self) {
        let rules = D::RULES;
        self.client_control.set_resting(true);
        self.send_line_to_all("rest").await;
        self.measurements.begin_round();
        let mut connection = self.server.connection().await;
        let keys = self.count_leftover_keys(&mut connection).await;
        self.measurements.record_value(rules.store_label, MeasuredResource::LeftoverKeys, keys);
        let permanent_kib =
            store_inspection::permanent_key_kib(&mut connection, D::NAMESPACE).await;
        self.measurements.record_value(
            rules.store_label,
            MeasuredResource::PermanentKeys,
            permanent_kib,
        );
        for (node, name) in rules.permanent_processes.iter().enumerate() {
            let usage = ResourceUsage::query_process(self.process(node)).await;
            self.measurements.record_usage(name, usage);
        }
        let mut usage = ResourceUsage::of_process(self.server.pid());
        if rules.excludes_key_memory {
            // Results are retained for a day, which is no growth. Keys without expiry are measured
            // above.
            usage.memory_kib = Some(store_inspection::overhead_kib(&mut connection).await);
        }
        self.measurements.record_usage(rules.server_label, usage);
        self.send_line_to_all("go").await;
        self.client_control.set_resting(false);
        self.last_measured_at = Instant::now();
    }

    /// Returns all measurements of a soak, and growth as violations.
    pub(super) fn growth_report(&self) -> (Vec<String>, Vec<Violation>) {
        let rules = D::RULES;
        let mut expected: Vec<_> = rules
            .permanent_processes
            .iter()
            .map(|name| (*name, soak_measurements::PROCESS_RESOURCES))
            .collect();
        expected.extend([
            (rules.server_label, soak_measurements::SERVER_RESOURCES),
            (rules.store_label, soak_measurements::STORE_RESOURCES),
        ]);
        let expected = if self.is_soak() { &expected[..] } else { &[] };
        let (lines, growth) = self.measurements.find_growth(expected);
        let violation = |description| Violation { guarantee: Guarantee::N1, description };
        (lines, growth.into_iter().map(violation).collect())
    }
}
