//! `wgslm serve` over real sockets: what clients of three APIs see, who may ask, what becomes of those who go.

mod apis;
mod client;
mod limits;
mod load;
mod models;
mod openai;
mod policy;
mod scripted;
mod tools;
mod turns;
