//! Line 4: what `DeferLayer` costs a request whose lock is free, in instructions.

use super::stage::Stage;
use crate::{
    callgrind,
    figure::{Figure, Line, short},
    outcome::Outcome,
    report,
};

const PROGRAM: &str = "lockgate-benches-unlocked";

pub(super) fn run(stage: &mut Stage) -> Outcome<Vec<Figure>> {
    report::title("4. Instructions of a request whose lock is free, by callgrind");
    let rounds = if callgrind::there() {
        let with = callgrind::each(&mut stage.bench, PROGRAM, "with")?;
        let without = callgrind::each(&mut stage.bench, PROGRAM, "without")?;
        println!("  with DeferLayer: {}; without: {}", short(with), short(without));
        // What the line is worth: the least that a layer can be which leaves a place in the request.
        let place = callgrind::each(&mut stage.bench, PROGRAM, "place")?;
        println!("  a place in the request's extensions, by hand, adds {}", short(place - without));
        vec![with - without]
    } else {
        Vec::new()
    };
    Ok(vec![Figure {
        id: "4g",
        what: "instructions that DeferLayer adds where the lock is free".into(),
        unit: "",
        line: Line::AtMost(500.0),
        rounds,
    }])
}
