//! Rows 4 and 7: replies are lost, scripts are forgotten.

use std::time::Duration;

use futures_util::future::join_all;
use lockgate_tests::{
    Framework,
    ledger::{Fleet, Told},
    proxy::{Moment, Rule},
};

use super::{BOTH, SECOND, fleet, steady};

/// Every reply of each script is lost once: nothing happens twice, and nobody is told of it.
#[tokio::test]
async fn lost_replies_are_not_noticed() {
    let scripts =
        ["enqueue_batch", "claim_job", "settle_job", "acquire", "renew", "poll_due", "heartbeat"];
    join_all(scripts.into_iter().enumerate().map(|(n, script)| async move {
        let mut fleet = fleet().await;
        let node = fleet.join(steady(BOTH[n % 2])).await;
        let lock = fleet.hold("7").await;
        // Of both methods: also one that must not run again runs, and once.
        let mut struck = fleet.proxy(node).strike(Rule::new(script, Moment::After));
        // A third of its lease until it is renewed: the run must still be there, however late the timer is.
        let wish = if script == "renew" { "ms=5000" } else { "ms=500" };
        let put = fleet.later(node, "7").put().wish(wish).accepted().await;
        let post = fleet.later(node, "7").accepted().await;
        lock.release().await;
        struck.happened().await;
        for id in [put, post] {
            let seen = fleet.outcome(node, &id).await;
            assert_eq!(seen.state, "done", "{script}: {seen:?}");
            let runs = fleet.runs_of(&id);
            assert_eq!((runs.len(), runs[0].attempt), (1, 1), "{script}");
        }
        let verdict = fleet.settle(node).await;
        assert!(verdict.wrong.is_empty(), "{script}: {verdict}");
        verdict.is_good();
    }))
    .await;
}

/// All replies are lost: 503 with the id under which it may have been stored, and it was.
#[tokio::test]
async fn an_unknown_outcome_can_be_looked_up() {
    join_all(BOTH.map(|framework| async move {
        for (moment, stored) in [(Moment::After, true), (Moment::Before, false)] {
            let mut fleet = fleet().await;
            let node = fleet.join(steady(framework)).await;
            let lock = fleet.hold("7").await;
            let mut struck = fleet.proxy(node).strike(Rule::new("enqueue_batch", moment).always());
            let told = fleet.later(node, "7").key("one").send().await;
            struck.happened().await;
            let Told::Perhaps(id) = told else { panic!("{moment:?}: {told:?}") };
            assert_eq!(!fleet.see(node, &id).await.state.is_empty(), stored);
            // It pauses between its tries (20 ms), for as long as its deadline (5 s).
            let tries = fleet.proxy(node).unanswered();
            assert!(tries <= 252, "{tries} tries");
            assert_eq!(tries > 2, stored, "{tries} tries");
            // None of its tries is on its way any more.
            fleet.proxy(node).cut();
            fleet.proxy(node).forget_rules();
            // The same request again finds it, or is stored now.
            let again = fleet.later(node, "7").key("one").accepted().await;
            assert_eq!(again == id, stored);
            lock.release().await;
            assert_eq!(fleet.outcome(node, &again).await.state, "done");
            assert_eq!(fleet.settle(node).await.is_good().runs, 1);
        }
    }))
    .await;
}

/// Requests of a few clients, each with one at a time, half of them deferred.
async fn load(fleet: &Fleet, each: usize) {
    let clients = (0..6).map(|client| {
        let (requests, to) = (fleet.requests(), [fleet.addr(0), fleet.addr(1)]);
        async move {
            for n in 0..each {
                let later = requests.later(to[n % 2], &(client % 3).to_string()).wish("ms=5");
                let later = if n % 3 == 0 { later.put() } else { later };
                let told = later.send().await;
                assert!(matches!(told, Told::Accepted(_) | Told::Ran(200, _)), "{told:?}");
            }
        }
    });
    join_all(clients).await;
}

#[tokio::test]
async fn forgotten_scripts_are_not_noticed() {
    let mut fleet = fleet().await;
    fleet.join(steady(Framework::Axum)).await;
    fleet.join(steady(Framework::Actix)).await;
    let forget = async {
        loop {
            fleet.command(&["SCRIPT", "FLUSH"]).await.expect("the server answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = forget => {}
        () = load(&fleet, 40) => {}
    }
    let errors = fleet.command(&["INFO", "errorstats"]).await.expect("the server answers");
    let errors: String = redis::from_redis_value(errors).expect("a text");
    assert!(errors.contains("errorstat_NOSCRIPT:"), "no script was missed: {errors}");
    let looked = fleet.settle(0).await.is_good();
    assert_eq!(looked.accepted + looked.direct_runs, 240);
    assert_eq!((looked.runs, looked.repeated_runs), (looked.accepted, 0), "{looked:?}");
}

/// Connections that are half open are so for as long as nobody needs them. Whoever asks by one of them late runs into a
/// deadline as late, and the client is told that the store is away: that is the fault's doing, however long ago it was made.
#[tokio::test]
async fn a_half_open_connection_is_trouble_for_as_long_as_it_is_there() {
    const RESOURCES: [&str; 6] = ["0", "1", "2", "3", "4", "5"];
    let mut fleet = fleet().await;
    let node = fleet.join(steady(Framework::Axum).web_only()).await;
    let all_pay = async |fleet: &Fleet| {
        let pay = RESOURCES.map(|resource| fleet.later(node, resource).pay().send());
        join_all(pay).await
    };
    fleet.judges_answers(16 * SECOND);
    let ran = |told: &Told| matches!(told, Told::Ran(200, _));
    assert!(all_pay(&fleet).await.iter().all(ran), "connections are made");
    fleet.half_open(node);
    // Nobody needs them: there is nothing that could be waited for.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let told = all_pay(&fleet).await;
    // They end while the calls wait, which are made again by others.
    assert!(told.iter().all(ran), "{told:?}");
    fleet.settle(node).await.is_good();
}
