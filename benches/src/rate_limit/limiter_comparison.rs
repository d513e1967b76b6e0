//! Comparison of servers with rate limiters under one load, in alternating rounds.

use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_process::BenchProcess,
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    command_origins::CommandOrigins,
    cpu_share,
    http::{
        http_load::{self, LoadReport, RequestPattern},
        limiter_server::{self, LimiterKind, QUOTA_LEASE_SIZE},
    },
    lock_comparison::run_alternating,
    report,
    stats::{median, paired_ratios},
};

/// Limit that a window never reaches.
pub(super) const UNREACHABLE_LIMIT: u32 = 1_000_000_000;

/// Limit that is reached long before the window begins, and large enough that connections compete
/// for its last unit.
pub(super) const SMALL_LIMIT: u32 = 100;

/// Load of one comparison, the same for all servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimiterScenario {
    /// Processes of the server, among which the connections are divided.
    pub(super) processes: usize,
    pub(super) connections: usize,
    pub(super) keys: usize,
    /// Quota of each key, in requests per window of the quota.
    pub(super) limit: u32,
}

/// Measurement of a server in one window.
#[derive(Debug, Clone, Default)]
pub(super) struct LimiterMeasurement {
    pub(super) load: LoadReport,
    pub(super) sent_per_request: f64,
    /// Failed check of the counts, if any.
    pub(super) failure: Option<String>,
}

/// Measurements of all servers, one per round.
pub(super) struct LimiterComparison {
    entries: Vec<(LimiterKind, Vec<LimiterMeasurement>)>,
    pings: Vec<LimiterMeasurement>,
}

impl LimiterComparison {
    /// Like [`LockComparison::run`](crate::lock_comparison::LockComparison::run): measures each
    /// server once per round, in alternating order, and a `PING` in each round. A peer that fails
    /// to run is reported and left out.
    pub(super) fn run(
        bench: &mut BenchRunner,
        scenario: &LimiterScenario,
        kinds: &[LimiterKind],
    ) -> BenchResult<Self> {
        let mut available = Vec::new();
        for kind in kinds {
            let observed = bench.observe_origins(|bench| {
                measure_window(bench, *kind, scenario, &CommandOrigins::default()).map(drop)
            });
            match observed {
                Ok(origins) => available.push((*kind, origins)),
                Err(error) if kind.is_lockgate() || kind.is_bare() => return Err(error),
                Err(error) => println!("  NOT RUN: {kind}: {error}"),
            }
        }
        let measurements = run_alternating(bench.settings.rounds, available.len() + 1, |index| {
            match available.get(index) {
                Some((kind, origins)) => measure_window(bench, *kind, scenario, origins),
                None => measure_ping(bench),
            }
        });
        let mut measurements = measurements?;
        let pings = measurements.pop().unwrap_or_default();
        let kinds = available.into_iter().map(|(kind, _)| kind);
        let comparison = Self { entries: kinds.zip(measurements).collect(), pings };
        comparison.print_table();
        bench.is_undisturbed &= cpu_share::check_undisturbed();
        for (kind, failure) in comparison.failures() {
            report::report_failure(bench, kind.is_lockgate() || kind.is_bare(), failure);
        }
        Ok(comparison)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (LimiterKind, &[LimiterMeasurement])> {
        self.entries.iter().map(|(kind, measurements)| (*kind, measurements.as_slice()))
    }

    pub(super) fn measurements(&self, kind: LimiterKind) -> &[LimiterMeasurement] {
        self.entries()
            .find(|(other, _)| *other == kind)
            .map_or(&[], |(_, measurements)| measurements)
    }

    pub(super) fn ping_measurements(&self) -> &[LimiterMeasurement] {
        &self.pings
    }

    pub(super) fn request_ratios(&self, own: LimiterKind, other: LimiterKind) -> Vec<f64> {
        let requests =
            |kind| round_values(self.measurements(kind), |load| load.requests_per_second);
        paired_ratios(&requests(own), &requests(other))
    }

    /// Creates the figure of the request ratio of two servers, with the lower bound `min_ratio`.
    pub(super) fn ratio_figure(
        &self,
        id: &'static str,
        [own, other]: [LimiterKind; 2],
        min_ratio: f64,
        load: &str,
    ) -> BenchFigure {
        BenchFigure {
            id,
            description: format!("requests, {load}: {own} / {other}"),
            unit: "x",
            target: FigureTarget::AtLeast(min_ratio),
            round_values: self.request_ratios(own, other),
        }
    }

    fn print_table(&self) {
        let header = [
            report::MEDIAN_HEADER,
            "requests/s",
            "x bare",
            "p50",
            "p99",
            "longest",
            "sent/request",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for (kind, measurements) in self.entries() {
            let cell = |value: fn(&LoadReport) -> f64| {
                format_number(median(&round_values(measurements, value)))
            };
            rows.push(vec![
                kind.to_string(),
                cell(|load| load.requests_per_second),
                format_number(median(&self.request_ratios(kind, kind.bare_counterpart()))),
                cell(|load| load.p50),
                cell(|load| load.p99),
                cell(|load| load.longest),
                format_number(median(&commands_per_request(measurements))),
            ]);
        }
        report::print_table(&rows);
        report::print_ping(
            &round_values(&self.pings, |ping| ping.p50),
            &round_values(&self.pings, |ping| ping.p99),
        );
    }

    /// Returns one message per server with failed checks: their number and the first one.
    fn failures(&self) -> Vec<(LimiterKind, String)> {
        let failed_servers = self.entries().filter_map(|(kind, measurements)| {
            let mut failures = measurements.iter().filter_map(|window| window.failure.as_ref());
            let (first_failure, further_count) = (failures.next()?, failures.count());
            Some((
                kind,
                format!(
                    "{kind}: {} windows FAILED their check, the first: {first_failure}",
                    further_count + 1
                ),
            ))
        });
        failed_servers.collect()
    }
}

pub(super) fn round_values(
    measurements: &[LimiterMeasurement],
    value: impl Fn(&LoadReport) -> f64,
) -> Vec<f64> {
    measurements.iter().map(|window| value(&window.load)).collect()
}

pub(super) fn commands_per_request(measurements: &[LimiterMeasurement]) -> Vec<f64> {
    measurements.iter().map(|window| window.sent_per_request).collect()
}

/// Measures one window of one server, with its own load process and an empty Redis.
fn measure_window(
    bench: &mut BenchRunner,
    kind: LimiterKind,
    scenario: &LimiterScenario,
    origins: &CommandOrigins,
) -> BenchResult<LimiterMeasurement> {
    bench.server.flush()?;
    let plan = limiter_server::LimiterServerPlan {
        kind,
        redis_port: bench.server.port(),
        limit: scenario.limit,
    };
    let (mut servers, mut ports) = (Vec::new(), Vec::new());
    for _ in 0..scenario.processes {
        let mut server = BenchProcess::start("limited", &plan)?;
        ports.push(server.read_line()?.parse()?);
        servers.push(server);
    }
    let plan = http_load::LoadPlan {
        ports,
        connections: scenario.connections,
        pattern: RequestPattern::Limited { keys: scenario.keys },
        window: bench.settings.window,
    };
    let mut loads = [BenchProcess::start("load", &plan)?];
    let counters = bench.count_window(&mut loads)?;
    let load: LoadReport = loads[0].read_json()?;
    let commands = origins.count_between(&counters.before, &counters.after);
    let handler_runs = total_handler_runs(&mut servers)?;
    let charged = if kind.is_lockgate() { Some(bench.server.sum_numeric_keys()?) } else { None };
    let failure = find_failure(kind, scenario, &load, handler_runs, charged);
    let sent_per_request =
        commands.sent / (load.requests_per_second * bench.settings.window.as_secs_f64());
    Ok(LimiterMeasurement { load, sent_per_request, failure })
}

/// Returns the number of handler runs in all processes of a server.
fn total_handler_runs(servers: &mut [BenchProcess]) -> BenchResult<u64> {
    let mut sum = 0;
    for server in servers {
        server.write_line("")?;
        sum += server.read_json::<u64>()?;
    }
    Ok(sum)
}

fn measure_ping(bench: &mut BenchRunner) -> BenchResult<LimiterMeasurement> {
    let ping = bench.measure_ping()?;
    let load =
        LoadReport { p50: ping.p50, p99: ping.p99, longest: ping.longest, ..LoadReport::default() };
    Ok(LimiterMeasurement { load, ..LimiterMeasurement::default() })
}

/// Checks the counts of responses, handler runs and charges. Returns the first mismatch.
fn find_failure(
    kind: LimiterKind,
    scenario: &LimiterScenario,
    load: &LoadReport,
    handler_runs: u64,
    charged: Option<u64>,
) -> Option<String> {
    let LoadReport { admitted, refused, .. } = *load;
    if let Some(first_failure) = &load.first_failure {
        return Some(format!(
            "{} connections FAILED, the first: {first_failure}",
            load.failed_connections
        ));
    }
    if handler_runs != admitted {
        return Some(format!(
            "{admitted} responses have status 200, but the handler ran {handler_runs} times"
        ));
    }
    if scenario.limit == UNREACHABLE_LIMIT || !kind.is_limited() {
        if refused > 0 {
            return Some(format!("{refused} requests within the quota were refused"));
        }
    } else if admitted != u64::from(scenario.limit) {
        return Some(format!(
            "{admitted} requests were admitted, but the quota is {}",
            scenario.limit
        ));
    }
    // Units of the only key that each process may have leased without spending them.
    let leased = if kind == LimiterKind::LeasedAxum { u64::from(QUOTA_LEASE_SIZE) } else { 0 };
    let max_charged = admitted + leased * u64::try_from(scenario.processes).unwrap_or(u64::MAX);
    match charged {
        Some(charged) if !(admitted..=max_charged).contains(&charged) => Some(format!(
            "{admitted} requests were admitted, but {charged} units are charged in Redis"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_failure(
        kind: LimiterKind,
        limit: u32,
        [admitted, refused]: [u64; 2],
        charged: u64,
    ) -> bool {
        let scenario = LimiterScenario { processes: 1, connections: 1, keys: 1, limit };
        let load = LoadReport { admitted, refused, ..LoadReport::default() };
        find_failure(kind, &scenario, &load, admitted, Some(charged)).is_some()
    }

    #[test]
    fn admitted_requests_must_equal_spent_quota() {
        assert!(!has_failure(LimiterKind::LayerAxum, SMALL_LIMIT, [100, 7], 100));
        assert!(has_failure(LimiterKind::LayerAxum, SMALL_LIMIT, [101, 7], 101));
        assert!(has_failure(LimiterKind::LayerAxum, SMALL_LIMIT, [99, 7], 99));
        assert!(!has_failure(LimiterKind::BareAxum, SMALL_LIMIT, [500, 0], 500));
    }

    #[test]
    fn charges_must_match_admitted_requests_and_leases() {
        assert!(!has_failure(LimiterKind::LayerAxum, UNREACHABLE_LIMIT, [500, 0], 500));
        assert!(has_failure(LimiterKind::LayerAxum, UNREACHABLE_LIMIT, [500, 0], 499));
        assert!(has_failure(LimiterKind::LayerAxum, UNREACHABLE_LIMIT, [500, 0], 501));
        assert!(has_failure(LimiterKind::LayerAxum, UNREACHABLE_LIMIT, [500, 1], 500));
        assert!(!has_failure(LimiterKind::LeasedAxum, UNREACHABLE_LIMIT, [500, 0], 600));
        assert!(has_failure(LimiterKind::LeasedAxum, UNREACHABLE_LIMIT, [500, 0], 601));
        assert!(has_failure(LimiterKind::LeasedAxum, UNREACHABLE_LIMIT, [500, 0], 499));
    }

    #[test]
    fn every_200_must_come_from_the_handler() {
        let scenario =
            LimiterScenario { processes: 1, connections: 1, keys: 1, limit: UNREACHABLE_LIMIT };
        let load = LoadReport { admitted: 5, ..LoadReport::default() };
        assert!(find_failure(LimiterKind::ActixExtensible, &scenario, &load, 4, None).is_some());
        assert!(find_failure(LimiterKind::ActixExtensible, &scenario, &load, 5, None).is_none());
        let load =
            LoadReport { failed_connections: 1, first_failure: Some("answered".into()), ..load };
        assert!(find_failure(LimiterKind::ActixExtensible, &scenario, &load, 5, None).is_some());
    }
}
