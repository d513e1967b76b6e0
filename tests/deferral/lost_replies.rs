//! Rows 4 and 7: replies are lost, and scripts are flushed.

use std::time::Duration;

use futures_util::future::join_all;
use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, SendOutcome},
    proxy::{FaultPoint, FaultRule},
};

use super::{BOTH_FRAMEWORKS, SECOND, long_lease_setup, start_fleet};

/// One reply of each script is lost: nothing happens twice, and no client sees an error.
#[tokio::test]
async fn lost_reply_of_each_script_changes_nothing() {
    let scripts = [
        "enqueue_jobs",
        "claim_lock_and_job",
        "settle_job_and_claim_next",
        "acquire",
        "renew",
        "poll_due_locks_and_jobs",
        "heartbeat_and_shard_assignment",
    ];
    join_all(scripts.into_iter().enumerate().map(|(n, script)| async move {
        let mut fleet = start_fleet().await;
        let node = fleet.start_node(long_lease_setup(BOTH_FRAMEWORKS[n % 2])).await;
        let lock = fleet.hold_lock("7").await;
        // Covers both methods: a POST, which must not repeat, runs once too.
        let mut rule_match =
            fleet.proxy(node).add_rule(FaultRule::new(script, FaultPoint::AfterCall));
        // The lease is renewed after a third of it: the run must still be active then, even with a
        // late timer.
        let instruction = if script == "renew" { "ms=5000" } else { "ms=500" };
        let put = fleet
            .deferrable_request(node, "7")
            .put()
            .instruct_handler(instruction)
            .send_accepted()
            .await;
        let post = fleet.deferrable_request(node, "7").send_accepted().await;
        lock.release().await;
        rule_match.wait_for_match().await;
        for id in [put, post] {
            let outcome = fleet.wait_for_outcome(node, &id).await;
            assert_eq!(outcome.state, "done", "{script}: {outcome:?}");
            let runs = fleet.runs_of(&id);
            assert_eq!((runs.len(), runs[0].attempt), (1, 1), "{script}");
        }
        let report = fleet.finish_and_check(node).await;
        assert!(report.violations.is_empty(), "{script}: {report}");
        report.assert_no_violations();
    }))
    .await;
}

/// All replies are lost: the response is a 503 with the id under which the job may be stored, and
/// it is if the call ran.
#[tokio::test]
async fn uncertain_enqueue_returns_location_of_job() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        for (fault_point, stored) in
            [(FaultPoint::AfterCall, true), (FaultPoint::BeforeCall, false)]
        {
            let mut fleet = start_fleet().await;
            let node = fleet.start_node(long_lease_setup(framework)).await;
            let lock = fleet.hold_lock("7").await;
            let mut rule_match =
                fleet.proxy(node).add_rule(FaultRule::new("enqueue_jobs", fault_point).always());
            let outcome = fleet.deferrable_request(node, "7").idempotency_key("one").send().await;
            rule_match.wait_for_match().await;
            let SendOutcome::PossiblyAccepted(id) = outcome else {
                panic!("{fault_point:?}: {outcome:?}")
            };
            assert_eq!(!fleet.query_status(node, &id).await.state.is_empty(), stored);
            // Retries pause for 20 ms, up to the deadline of 5 s.
            let call_count = fleet.proxy(node).unanswered_calls();
            assert!(call_count <= 252, "{call_count} tries");
            assert_eq!(call_count > 2, stored, "{call_count} tries");
            // No retry is in flight any more.
            fleet.proxy(node).cut_connections();
            fleet.proxy(node).clear_rules();
            // The repeated request finds the job or stores it now.
            let retried =
                fleet.deferrable_request(node, "7").idempotency_key("one").send_accepted().await;
            assert_eq!(retried == id, stored);
            lock.release().await;
            assert_eq!(fleet.wait_for_outcome(node, &retried).await.state, "done");
            assert_eq!(fleet.finish_and_check(node).await.assert_no_violations().runs, 1);
        }
    }))
    .await;
}

/// Sends requests of six concurrent clients, half of them deferred.
async fn send_requests(fleet: &JobFleet, requests_per_client: usize) {
    let clients = (0..6).map(|client| {
        let (requests, node_addrs) =
            (fleet.recording_client(), [fleet.node_addr(0), fleet.node_addr(1)]);
        async move {
            for n in 0..requests_per_client {
                let request = requests
                    .deferrable_request(node_addrs[n % 2], &(client % 3).to_string())
                    .instruct_handler("ms=5");
                let request = if n % 3 == 0 { request.put() } else { request };
                let outcome = request.send().await;
                assert!(
                    matches!(outcome, SendOutcome::Accepted(_) | SendOutcome::RanDirectly(200, _)),
                    "{outcome:?}"
                );
            }
        }
    });
    join_all(clients).await;
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let mut fleet = start_fleet().await;
    fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let flush_repeatedly = async {
        loop {
            fleet.send_server_command(&["SCRIPT", "FLUSH"]).await.expect("the server answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = flush_repeatedly => {}
        () = send_requests(&fleet, 40) => {}
    }
    let errors =
        fleet.send_server_command(&["INFO", "errorstats"]).await.expect("the server answers");
    let errors: String = redis::from_redis_value(errors).expect("a text");
    assert!(errors.contains("errorstat_NOSCRIPT:"), "no script was missed: {errors}");
    let stats = fleet.finish_and_check(0).await.assert_no_violations();
    assert_eq!(stats.accepted + stats.direct_runs, 240);
    assert_eq!((stats.runs, stats.repeated_runs), (stats.accepted, 0), "{stats:?}");
}

/// Half-open connections stay until they are used. A late call on one of them reaches its deadline
/// and reports an outage; that is the fault's effect, however old the fault is.
#[tokio::test]
async fn half_open_connections_are_replaced_when_used() {
    const RESOURCES: [&str; 6] = ["0", "1", "2", "3", "4", "5"];
    let mut fleet = start_fleet().await;
    let node = fleet.start_node(long_lease_setup(WebFramework::Axum).without_worker()).await;
    let all_pay = async |fleet: &JobFleet| {
        let pay = RESOURCES
            .map(|resource| fleet.deferrable_request(node, resource).refused_if_busy().send());
        join_all(pay).await
    };
    fleet.check_answers_within(16 * SECOND);
    let ran = |outcome: &SendOutcome| matches!(outcome, SendOutcome::RanDirectly(200, _));
    assert!(all_pay(&fleet).await.iter().all(ran), "connections are made");
    fleet.make_half_open(node);
    // The connections are idle, so there is no event to wait for.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let outcomes = all_pay(&fleet).await;
    // The connections are closed while the calls wait, and the calls are repeated on new ones.
    assert!(outcomes.iter().all(ran), "{outcomes:?}");
    fleet.finish_and_check(node).await.assert_no_violations();
}
