//! Who may see a job, where it is told of as it goes on.

use lockgate_tests::{Case, Site};

use super::{accepted, lock::busy};

pub(crate) async fn the_events_of_a_job_are_its_owners_alone(case: Case) {
    let (site, other) = (case.site().await, case.site().await);
    let hold = site.hold("/orders/7/pay").await;
    let sent = site.post("/owned/7?gate=run").header("x-user", "ada");
    let job = accepted(sent.send().await);
    let hidden = async |site: &Site| {
        let stream = || site.get(&job.location).header("accept", "text/event-stream");
        for request in [stream(), stream().header("x-user", "bob")] {
            let answer = request.send().await.expect(404);
            assert!(!answer.text().contains(&job.id), "{answer:?}");
            let _ = answer.problem();
        }
    };
    let mut told = [site.raw().await, other.raw().await];
    for raw in &mut told {
        let target = &job.location;
        raw.write(&format!(
            "GET {target} HTTP/1.1\r\nhost: x\r\nx-user: ada\r\naccept: text/event-stream\r\n\r\n"
        ))
        .await;
        let head = raw.read_until("\"queued\"").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    hidden(&site).await;
    let _ = hold.let_go().await.expect(200);
    case.desk.gates.arrived("run").await;
    for raw in &mut told {
        let _ = raw.read_until("\"running\"").await;
    }
    hidden(&other).await;
    busy(site.post("/orders/7/pay").send().await);
    case.desk.gates.open("run");
    for raw in &mut told {
        let _ = raw.read_until("\"done\"").await;
    }
    hidden(&site).await;
}
