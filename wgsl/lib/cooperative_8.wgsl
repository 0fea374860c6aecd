//! cooperative_8: cooperative matrices of 8 x 8, in f16, and their sums in f32.
enable f16;
enable wgpu_cooperative_matrix;
const SIDE: u32 = 8u;
alias Half = f16;
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sums = coop_mat8x8<f32, C>;
