//! `sserve` as it is installed, against an agent, a gateway and Slurm's commands played by the test.

mod doctor;
mod fake;
mod find;
mod gpus;
mod health;
mod hold;
mod list;
mod logs;
mod recipes;
mod status;
mod stop;
mod url;
mod wait;
