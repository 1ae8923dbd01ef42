//! Whoever may ask the runner for its end.

use std::process::ExitCode;

use slurm_serve_proto::v1::Cause;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use super::complain;
use crate::step::link::{Event, Order};
use crate::step::outcome::Outcome;

/// Whoever may ask for the end: Slurm by signal, the agent by word.
pub struct Ears {
    pub term: Signal,
    pub int: Signal,
    /// What the agent says.
    pub events: mpsc::Receiver<Event>,
    /// A signal has come.
    pub signalled: bool,
}

impl Ears {
    /// Waits for the launch order; with nothing to serve, an end is simply an end.
    pub async fn first_order(&mut self) -> Result<Order, ExitCode> {
        loop {
            tokio::select! {
                () = signalled(&mut self.term, &mut self.int) => return Err(ExitCode::SUCCESS),
                event = self.events.recv() => match event {
                    Some(Event::Order(order)) => return Ok(*order),
                    Some(Event::Stop(_)) => return Err(ExitCode::SUCCESS),
                    Some(Event::Over(why)) => return Err(complain(&why)),
                    Some(Event::Released) => {}
                    None => return Err(complain("the line to the agent ended")),
                },
            }
        }
    }

    /// Returns when somebody asks for the end. May be dropped and called again.
    pub async fn asked(&mut self) -> Outcome {
        loop {
            tokio::select! {
                biased;
                () = signalled(&mut self.term, &mut self.int) => {
                    self.signalled = true;
                    return Outcome::signalled();
                }
                event = self.events.recv() => match event {
                    Some(Event::Stop(stop)) => return Outcome::ordered(stop.cause()),
                    Some(Event::Over(why)) => return Outcome::Asked(Cause::JobEnded, why),
                    // Of an end that did not come to be, or said twice.
                    Some(Event::Released | Event::Order(_)) => {}
                    None => return Outcome::Asked(Cause::JobEnded, "the line to the agent ended".into()),
                },
            }
        }
    }

    /// Waits until every catalog has let go.
    pub async fn released(&mut self) {
        loop {
            match self.events.recv().await {
                Some(Event::Released | Event::Over(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

async fn signalled(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
