//! Rows 4 and 7: replies are lost, and scripts are flushed.

use std::time::Duration;

use futures_util::future::join_all;
use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, SendOutcome},
    proxy::{FaultPoint, FaultRule},
};

use super::{BOTH_FRAMEWORKS, SECOND, long_lease_setup, start_fleet};

/// Every reply of each script is lost once: nothing happens twice, and nobody is told of it.
#[tokio::test]
async fn lost_reply_of_each_script_changes_nothing() {
    let scripts = [
        "enqueue_jobs",
        "claim_lock_and_job",
        "settle_job_and_claim_next",
        "acquire",
        "renew",
        "poll_due_locks_and_jobs",
        "worker_heartbeat_and_shards",
    ];
    join_all(scripts.into_iter().enumerate().map(|(n, script)| async move {
        let mut fleet = start_fleet().await;
        let node = fleet.start_node(long_lease_setup(BOTH_FRAMEWORKS[n % 2])).await;
        let lock = fleet.hold_lock("7").await;
        // Of both methods: also one that must not run again runs, and once.
        let mut struck = fleet.proxy(node).add_rule(FaultRule::new(script, FaultPoint::AfterCall));
        // A third of its lease until it is renewed: the run must still be there, however late the timer is.
        let wish = if script == "renew" { "ms=5000" } else { "ms=500" };
        let put =
            fleet.deferrable_request(node, "7").put().instruct_handler(wish).send_accepted().await;
        let post = fleet.deferrable_request(node, "7").send_accepted().await;
        lock.release().await;
        struck.wait_for_match().await;
        for id in [put, post] {
            let seen = fleet.wait_for_outcome(node, &id).await;
            assert_eq!(seen.state, "done", "{script}: {seen:?}");
            let runs = fleet.runs_of(&id);
            assert_eq!((runs.len(), runs[0].attempt), (1, 1), "{script}");
        }
        let verdict = fleet.finish_and_check(node).await;
        assert!(verdict.violations.is_empty(), "{script}: {verdict}");
        verdict.assert_no_violations();
    }))
    .await;
}

/// All replies are lost: 503 with the id under which it may have been stored, and it was.
#[tokio::test]
async fn uncertain_enqueue_returns_location_of_job() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        for (moment, stored) in [(FaultPoint::AfterCall, true), (FaultPoint::BeforeCall, false)] {
            let mut fleet = start_fleet().await;
            let node = fleet.start_node(long_lease_setup(framework)).await;
            let lock = fleet.hold_lock("7").await;
            let mut struck =
                fleet.proxy(node).add_rule(FaultRule::new("enqueue_jobs", moment).always());
            let told = fleet.deferrable_request(node, "7").idempotency_key("one").send().await;
            struck.wait_for_match().await;
            let SendOutcome::PossiblyAccepted(id) = told else { panic!("{moment:?}: {told:?}") };
            assert_eq!(!fleet.query_status(node, &id).await.state.is_empty(), stored);
            // It pauses between its tries (20 ms), for as long as its deadline (5 s).
            let tries = fleet.proxy(node).unanswered_calls();
            assert!(tries <= 252, "{tries} tries");
            assert_eq!(tries > 2, stored, "{tries} tries");
            // None of its tries is on its way any more.
            fleet.proxy(node).cut_connections();
            fleet.proxy(node).clear_rules();
            // The same request again finds it, or is stored now.
            let again =
                fleet.deferrable_request(node, "7").idempotency_key("one").send_accepted().await;
            assert_eq!(again == id, stored);
            lock.release().await;
            assert_eq!(fleet.wait_for_outcome(node, &again).await.state, "done");
            assert_eq!(fleet.finish_and_check(node).await.assert_no_violations().runs, 1);
        }
    }))
    .await;
}

/// Requests of a few clients, each with one at a time, half of them deferred.
async fn send_requests(fleet: &JobFleet, each: usize) {
    let clients = (0..6).map(|client| {
        let (requests, to) = (fleet.recording_client(), [fleet.node_addr(0), fleet.node_addr(1)]);
        async move {
            for n in 0..each {
                let later = requests
                    .deferrable_request(to[n % 2], &(client % 3).to_string())
                    .instruct_handler("ms=5");
                let later = if n % 3 == 0 { later.put() } else { later };
                let told = later.send().await;
                assert!(
                    matches!(told, SendOutcome::Accepted(_) | SendOutcome::RanDirectly(200, _)),
                    "{told:?}"
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
    let forget = async {
        loop {
            fleet.send_server_command(&["SCRIPT", "FLUSH"]).await.expect("the server answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = forget => {}
        () = send_requests(&fleet, 40) => {}
    }
    let errors =
        fleet.send_server_command(&["INFO", "errorstats"]).await.expect("the server answers");
    let errors: String = redis::from_redis_value(errors).expect("a text");
    assert!(errors.contains("errorstat_NOSCRIPT:"), "no script was missed: {errors}");
    let looked = fleet.finish_and_check(0).await.assert_no_violations();
    assert_eq!(looked.accepted + looked.direct_runs, 240);
    assert_eq!((looked.runs, looked.repeated_runs), (looked.accepted, 0), "{looked:?}");
}

/// Connections that are half open are so for as long as nobody needs them. Whoever asks by one of them late runs into a
/// deadline as late, and the client is told that the store is away: that is the fault's doing, however long ago it was made.
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
    let ran = |told: &SendOutcome| matches!(told, SendOutcome::RanDirectly(200, _));
    assert!(all_pay(&fleet).await.iter().all(ran), "connections are made");
    fleet.make_half_open(node);
    // Nobody needs them: there is nothing that could be waited for.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let told = all_pay(&fleet).await;
    // They end while the calls wait, which are made again by others.
    assert!(told.iter().all(ran), "{told:?}");
    fleet.finish_and_check(node).await.assert_no_violations();
}
