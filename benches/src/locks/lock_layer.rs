//! Figure 5, layer: `LockLayer` over axum, 64 connections that never share a key.

use crate::{
    bench_figure::{BenchFigure, FigureTarget, format_number},
    bench_process::BenchProcess,
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    command_origins::CommandOrigins,
    cpu_share,
    http::{
        http_load::{self, LoadReport, RequestPattern},
        lock_server::{self, LockServerKind},
    },
    lock_comparison::run_alternating,
    report,
    stats::{median, paired_ratios, value_range},
};

const CONNECTION_COUNT: usize = 64;

/// Only the first three have figures; the others put the targets into perspective.
const SERVER_KINDS: [LockServerKind; 6] = [
    LockServerKind::LockLayer,
    LockServerKind::Bare,
    LockServerKind::RslockMiddleware,
    LockServerKind::BackgroundRelease,
    LockServerKind::TwoPings,
    LockServerKind::SharedPings,
];

struct LayerMeasurement {
    load: LoadReport,
    sent_per_request: f64,
}

pub(super) fn run(bench: &mut BenchRunner) -> BenchResult<Vec<BenchFigure>> {
    report::print_title("5. LockLayer over axum, 64 connections on keys of their own");
    let mut origins = Vec::new();
    for kind in SERVER_KINDS {
        origins.push(bench.observe_origins(|bench| {
            measure_window(bench, kind, &CommandOrigins::default()).map(drop)
        })?);
    }
    let measurements =
        run_alternating(bench.settings.rounds, SERVER_KINDS.len() + 1, |index| match SERVER_KINDS
            .get(index)
        {
            Some(kind) => measure_window(bench, *kind, &origins[index]),
            None => measure_ping(bench),
        })?;
    print_tables(&measurements);
    bench.is_undisturbed &= cpu_share::check_undisturbed();
    for (kind, failure) in failures(&measurements) {
        println!("  {failure}");
        if kind == LockServerKind::LockLayer {
            bench.failures.push(failure);
        }
    }
    Ok(ratio_figures(&measurements))
}

/// Measures one window of one server, with its own load process.
fn measure_window(
    bench: &mut BenchRunner,
    kind: LockServerKind,
    origins: &CommandOrigins,
) -> BenchResult<LayerMeasurement> {
    bench.server.flush()?;
    let plan = lock_server::LockServerPlan { kind, redis_port: bench.server.port() };
    let mut server = BenchProcess::start("server", &plan)?;
    let port = server.read_line()?.parse()?;
    let (pattern, window) = (RequestPattern::Orders, bench.settings.window);
    let plan =
        http_load::LoadPlan { ports: vec![port], connections: CONNECTION_COUNT, pattern, window };
    let mut loads = [BenchProcess::start("load", &plan)?];
    let counters = bench.count_window(&mut loads)?;
    let load: LoadReport = loads[0].read_json()?;
    let commands = origins.count_between(&counters.before, &counters.after);
    let sent_per_request =
        commands.sent / (load.requests_per_second * bench.settings.window.as_secs_f64());
    Ok(LayerMeasurement { load, sent_per_request })
}

fn measure_ping(bench: &mut BenchRunner) -> BenchResult<LayerMeasurement> {
    let ping = bench.measure_ping()?;
    let load =
        LoadReport { p50: ping.p50, p99: ping.p99, longest: ping.longest, ..LoadReport::default() };
    Ok(LayerMeasurement { load, sent_per_request: 0.0 })
}

fn round_values(measurements: &[LayerMeasurement], value: impl Fn(&LoadReport) -> f64) -> Vec<f64> {
    measurements.iter().map(|window| value(&window.load)).collect()
}

fn print_tables(measurements: &[Vec<LayerMeasurement>]) {
    let header = [report::MEDIAN_HEADER, "requests/s", "p50", "p99", "longest", "sent/request"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (kind, measurements) in SERVER_KINDS.iter().zip(measurements) {
        let cell = |value: fn(&LoadReport) -> f64| {
            format_number(median(&round_values(measurements, value)))
        };
        let sent_per_request: Vec<f64> =
            measurements.iter().map(|window| window.sent_per_request).collect();
        rows.push(vec![
            kind.to_string(),
            cell(|load| load.requests_per_second),
            cell(|load| load.p50),
            cell(|load| load.p99),
            cell(|load| load.longest),
            format_number(median(&sent_per_request)),
        ]);
    }
    report::print_table(&rows);
    let requests = |kind| {
        let index = SERVER_KINDS.iter().position(|other| *other == kind).unwrap_or_default();
        round_values(&measurements[index], |load| load.requests_per_second)
    };
    let rslock_requests = requests(LockServerKind::RslockMiddleware);
    for kind in
        [LockServerKind::BackgroundRelease, LockServerKind::TwoPings, LockServerKind::SharedPings]
    {
        let ratios = paired_ratios(&requests(kind), &rslock_requests);
        let (smallest, largest) = value_range(&ratios);
        let (median, smallest, largest) =
            (format_number(median(&ratios)), format_number(smallest), format_number(largest));
        println!(
            "  requests, {kind} / {}: {median} x ({smallest}..{largest})",
            LockServerKind::RslockMiddleware
        );
    }
    let pings = &measurements[SERVER_KINDS.len()];
    report::print_ping(
        &round_values(pings, |load| load.p50),
        &round_values(pings, |load| load.p99),
    );
}

/// Returns one message per server that had failed connections: responses other than 200, or none.
fn failures(
    measurements: &[Vec<LayerMeasurement>],
) -> impl Iterator<Item = (LockServerKind, String)> {
    SERVER_KINDS.into_iter().zip(measurements).filter_map(|(kind, measurements)| {
        let first_failure =
            measurements.iter().find_map(|window| window.load.first_failure.as_ref())?;
        let failed_count: usize =
            measurements.iter().map(|window| window.load.failed_connections).sum();
        Some((
            kind,
            format!("{kind}: {failed_count} connections FAILED, the first: {first_failure}"),
        ))
    })
}

fn ratio_figures(measurements: &[Vec<LayerMeasurement>]) -> Vec<BenchFigure> {
    let [layer, bare, rslock_middleware] = [0, 1, 2].map(|index: usize| &measurements[index]);
    let figure = |id,
                  description: &str,
                  target,
                  other: &[LayerMeasurement],
                  value: fn(&LoadReport) -> f64| BenchFigure {
        id,
        description: description.into(),
        unit: "x",
        target,
        round_values: paired_ratios(&round_values(layer, value), &round_values(other, value)),
    };
    let requests = |load: &LoadReport| load.requests_per_second;
    let at_least = FigureTarget::AtLeast;
    vec![
        figure("5a", "requests, LockLayer / bare axum", at_least(0.45), bare, requests),
        figure(
            "5b",
            "requests, LockLayer / rslock by hand",
            at_least(1.3),
            rslock_middleware,
            requests,
        ),
        figure("5c", "p99, LockLayer / bare axum", FigureTarget::AtMost(4.0), bare, |load| {
            load.p99
        }),
    ]
}
